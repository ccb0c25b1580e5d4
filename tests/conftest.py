"""What every test shares: how Hypothesis runs."""

from hypothesis import settings

# The machines that run this are shared and slow at times: an example may take as long as it takes.
settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")
