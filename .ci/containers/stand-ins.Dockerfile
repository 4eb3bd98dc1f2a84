# Debian's own Prometheus, Alertmanager and HAProxy, for machines that cannot pull the images docker-compose.yml names.
# Real programs, other versions. Paths and users are made to look like those images', so that the compose file is used as it is.
ARG BASE_IMAGE=docker.io/library/python:3.11.13-slim-bookworm
FROM ${BASE_IMAGE} AS prometheus
# whatever Debian 12 has: it stands in for another image
# hadolint ignore=DL3008
RUN apt-get update -q && apt-get install -y -q --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/* \
    && install -d -o 65534 -g 65534 /prometheus /etc/prometheus/rules
USER 65534:65534
ENTRYPOINT ["prometheus"]

FROM ${BASE_IMAGE} AS alertmanager
# whatever Debian 12 has: it stands in for another image
# hadolint ignore=DL3008
RUN apt-get update -q && apt-get install -y -q --no-install-recommends prometheus-alertmanager && rm -rf /var/lib/apt/lists/* \
    && install -d -o 65534 -g 65534 /alertmanager /etc/alertmanager
USER 65534:65534
ENTRYPOINT ["prometheus-alertmanager"]

FROM ${BASE_IMAGE} AS haproxy
# whatever Debian 12 has: it stands in for another image
# hadolint ignore=DL3008
RUN apt-get update -q && apt-get install -y -q --no-install-recommends haproxy && rm -rf /var/lib/apt/lists/* \
    && install -d /usr/local/etc/haproxy
USER 99:99
ENTRYPOINT ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
