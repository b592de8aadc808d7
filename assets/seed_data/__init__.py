"""What the seed teaches before the first iteration: lessons on screens, sites and shells drawn at random, the tutorials made of them, and
the word lists of the quickstart's tokenizer (words/). No browser, no task, no Dagster.
"""
