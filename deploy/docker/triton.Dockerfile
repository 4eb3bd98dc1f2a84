# NVIDIA's Triton with our start-up, for GPUs (and for CPUs with its own backends). What it loads is decided by model
# sync beside it; this image only starts the server the way sync needs it. Which release, and why: docs/triton.md, "Known
# vulnerabilities".
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.08-py3
FROM ${TRITON_IMAGE}
ARG TRITON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="triton-gateway-triton" \
      org.opencontainers.image.description="NVIDIA Triton, started for triton-gateway's model sync" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${TRITON_IMAGE}"
USER 0
RUN install -d -o 65532 -g 65532 /models && install -d -o 65532 -g 65532 -m 0700 /keys
COPY --chmod=0755 deploy/docker/triton-entrypoint.sh /usr/local/bin/triton-entrypoint
# the image's own entrypoint prints banners and then runs its arguments: the server itself gets the signals instead
USER 65532:65532
ENV HOME=/tmp
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["curl", "--fail", "--silent", "--max-time", "3", "http://127.0.0.1:8000/v2/health/live"]
# starts tritonserver so that only who has the key in /keys/triton may load models
ENTRYPOINT ["triton-entrypoint"]
