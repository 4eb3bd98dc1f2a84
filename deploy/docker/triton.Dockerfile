# NVIDIA's Triton with our start-up, for GPUs (and for CPUs with its own backends). What it loads is decided by model
# sync beside it; this image only starts the server the way sync needs it.
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:25.06-py3
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
RUN install -d -o 65532 -g 65532 /models
# the image's own entrypoint prints banners and then runs its arguments: the server itself gets the signals instead
USER 65532:65532
ENV HOME=/tmp
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["curl", "--fail", "--silent", "--max-time", "3", "http://127.0.0.1:8000/v2/health/live"]
# explicit: sync loads and unloads; one broken model must not end the server; requests in flight get 30 s
ENTRYPOINT ["tritonserver", "--model-repository=/models", "--model-control-mode=explicit", "--exit-on-error=false", \
            "--strict-readiness=false", "--exit-timeout-secs=30"]
