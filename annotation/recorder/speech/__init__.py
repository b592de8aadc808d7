"""What is said: the microphone, the sound in the journal, its words, and the actions that they belong to."""
