"""Estimators of scikit-learn, LightGBM and XGBoost."""
