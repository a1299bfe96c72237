"""Readers of fitted estimators of scikit-learn, LightGBM and XGBoost."""
