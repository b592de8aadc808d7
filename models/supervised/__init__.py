"""CT and SFT by the Hugging Face `Trainer`. config: every setting; run: from a checkpoint and samples to a checkpoint; fitting: the trainer
itself; early_stop: the held-out curve; checkpoints: what a killed run resumes from; distributed and process: the same run in several
processes, under DeepSpeed.
"""
