"""An annotation server of a home, put together: its parts (server), where it is (address), whose policies propose (policy_source), and
recordings that people took back (withdrawal).
"""
