"""scikit-learn's and LightGBM's estimators."""
