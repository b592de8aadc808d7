"""What travels between the annotation server, its pages and programs: the JSON of /api/v1. Wire forms only; rules are service/'s."""
