"""Pages brought on by records, over a base backup where there is one."""
