"""What several rooms use and none owns: errors, ports, processes, HTTP calls, a Task's sections, the stock CLI.

Runs wherever its callers run, so it imports the standard library, psutil, and of the gateway only its errors, its
reader of HOCON text, its way to write a file and the parent-death signal. What one room alone uses belongs into that
room. It must never decide anything: what to start, retry or write is its callers' business.
"""
