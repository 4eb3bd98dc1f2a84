"""Who asks, and what they may do: keys, their files, and the one check of them.

Called by both edges before a body is read, and by ``triton-gateway keys``, which writes the files. It must never keep
a key itself (only its hash), never go by what is no longer in the file, and know no transport and no endpoint.
"""
