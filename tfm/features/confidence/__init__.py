"""The confidence in translations of a calibrated model."""
