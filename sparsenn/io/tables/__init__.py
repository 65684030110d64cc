"""Rows of samples in files: CSV and Parquet, files of any kind read in ranges, and the predictions of a model."""

__all__ = []
