"""Who lends sessions: the Pool protocol, the pool of this process, its slots and its queue, and how a session of each kind is made."""
