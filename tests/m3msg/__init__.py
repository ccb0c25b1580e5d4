"""M3Msg, in and out."""
