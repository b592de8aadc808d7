"""What passes through the gateway, without HTTP: records of calls, the episodes they belong to, the durable log, rows for the warehouse."""
