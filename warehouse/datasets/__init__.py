"""What is trained on: mixtures of D_CT and D_SFT as snapshots, general data, imports, exports, and samples that are taken back."""
