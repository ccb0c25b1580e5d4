"""Version 2 of the queue service: REST resources, one envelope, one shape of errors, receipts."""
