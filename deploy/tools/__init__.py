"""Code that several packages of ``deploy`` share: errors, ports, processes, HTTP calls, sections, the stock CLI.

Runs wherever its callers run. It therefore imports only the standard library, and of the gateway its errors,
its HOCON reader, its file writing and locks, and the parent-death signal. Code that only one package uses belongs into
that package. It must never decide what to start, retry or write: its callers do.
"""
