#!/bin/sh
# Run once by the image of Postgres, on a new volume: three databases, each with an owner of its own whom the others cannot reach.
# The passwords are read by psql from the environment, so no command line holds them.
set -eu
psql --no-psqlrc -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\getenv dagster DAGSTER_DB_PASSWORD
\getenv prefect PREFECT_DB_PASSWORD
\getenv annotation ANNOTATION_DB_PASSWORD
create role dagster login password :'dagster';
create role prefect login password :'prefect';
create role annotation login password :'annotation';
create database dagster owner dagster;
create database prefect owner prefect;
create database annotation owner annotation;
revoke all on database dagster, prefect, annotation from public;
SQL
