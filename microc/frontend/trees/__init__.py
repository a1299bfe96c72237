# SPDX-License-Identifier: Apache-2.0
"""Readers of fitted estimators of scikit-learn, LightGBM and XGBoost."""
