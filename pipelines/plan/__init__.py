"""What a profile will take, and whether it can run, before anything runs. plan: time, memory and disk of each stage; planner: how
they are reckoned; workload: how much work there is; givens: the machine and the policy; preflight, server_check: what can be checked;
dry_run: `flywheel run --dry-run`.
"""
