"""The settings of an iteration: profile, and the parts that it is put together of."""
