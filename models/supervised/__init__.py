"""CT and SFT by the Hugging Face `Trainer`. config: every setting; run: from a checkpoint and samples to a checkpoint; training_set and
sample_file: what is trained on, encoded, in files; fitting: the trainer itself; early_stop: the held-out curve; checkpoints: what a killed
run resumes from; distributed and process: the same run in several processes, under DeepSpeed.
"""
