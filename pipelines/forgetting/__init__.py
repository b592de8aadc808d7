"""`flywheel forget`: a person, an episode or an import out of a home, with all that holds their content. The tables are
warehouse/datasets/withdrawal.py's, the annotation database annotation/storage/forgetting.py's."""
