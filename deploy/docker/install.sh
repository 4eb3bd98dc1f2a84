#!/bin/sh
# install.sh IMAGE [EXTRA...]: the packages of an image into /opt/venv; install.sh FOLDER: our own wheel out of a folder.
set -eu
pip="/opt/tools/bin/pip --python /opt/venv/bin/python"
if [ -d "$1" ]; then
    exec $pip install --no-deps "$1"/*.whl
fi
/opt/tools/bin/python requirements.py "$@" >requirements.txt
$pip install --constraint constraints.txt --requirement requirements.txt
# what tools for bills of materials read
$pip freeze >/opt/venv/requirements.lock
