"""The data files of tables: written and checked (data_files, checked_dataset), which of them a table has now (table_files, listing_notes)
and which hold an id (id_index), and what is noted of them beside the tables (notes).
"""
