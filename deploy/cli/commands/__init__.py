"""The sub-commands of ``triton-gateway``: one module per noun, each with a click command named ``command``.

The only place under ``deploy`` that reads ``os.environ`` or prints. A module here parses options, calls the part that
does the work, and shows the result; logic worth testing lives in that part. Called by ``cli``, which imports one only
when it is typed; a command must never import another command's work.
"""
