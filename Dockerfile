# Two images. The last stage is the proxy; `docker build --target pipeline` makes the pipeline with Spark and Java.
# The service: no JVM, no compiler, not root. Its packages are those of requirements.lock, checked by hash. The compiler of
# the first stage compiles the deciding code.
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
# The versions are those of the image's release of Debian.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY requirements.lock requirements-build.lock pyproject.toml README.md LICENSE ./
COPY deploy deploy
COPY kafka_throttle kafka_throttle
COPY common common
COPY protocol protocol
COPY quotas quotas
COPY proxy proxy
COPY pipeline pipeline
RUN python -m venv /opt/kafka-throttle \
 && /opt/kafka-throttle/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock \
 && python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-build.lock \
 && /opt/build/bin/python -m hatchling build -t wheel \
 && /opt/kafka-throttle/bin/pip install --no-cache-dir --no-deps dist/*.whl \
 && case "$(/opt/kafka-throttle/bin/kafka-throttle --version)" in *", compiled") ;; *) exit 1 ;; esac

# The packages of the pipeline, and the jars of Delta Lake and of Spark's Kafka source, which are checked by their hashes.
FROM build AS pipeline-build
ENV KAFKA_THROTTLE_CACHE=/opt/kafka-throttle/cache
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends maven && rm -rf /var/lib/apt/lists/*
COPY requirements-pipeline.lock ./
RUN /opt/kafka-throttle/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-pipeline.lock \
 && /opt/kafka-throttle/bin/python -c "from kafka_throttle.common import jars; jars.spark_delta_jars(print); jars.spark_kafka_jars(print)"

# The pipeline, each night: docs/reference/pipeline.md.
FROM python:3.11-slim-bookworm AS pipeline
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/* \
 && groupadd --system --gid 10001 kafka-throttle \
 && useradd --system --no-create-home --uid 10001 --gid 10001 kafka-throttle \
 && mkdir /run/kafka-throttle \
 && install -d -m 700 -o kafka-throttle -g kafka-throttle /var/lib/kafka-throttle
COPY --from=pipeline-build /opt/kafka-throttle /opt/kafka-throttle
COPY deploy/nightly.sh /opt/kafka-throttle/bin/kafka-throttle-nightly
ENV PATH=/opt/kafka-throttle/bin:$PATH \
    KAFKA_THROTTLE_CACHE=/opt/kafka-throttle/cache \
    NIGHTLY_TABLE=/var/lib/kafka-throttle/table \
    NIGHTLY_OUT=/var/lib/kafka-throttle/nightly
USER 10001:10001
WORKDIR /run/kafka-throttle
CMD ["kafka-throttle-nightly"]

FROM python:3.11-slim-bookworm
RUN groupadd --system --gid 10001 kafka-throttle \
 && useradd --system --no-create-home --uid 10001 --gid 10001 kafka-throttle \
 && mkdir /run/kafka-throttle /etc/kafka-throttle \
 && install -d -m 700 -o kafka-throttle -g kafka-throttle /var/lib/kafka-throttle
COPY --from=build /opt/kafka-throttle /opt/kafka-throttle
COPY deploy/healthcheck.py /opt/kafka-throttle/
ENV PATH=/opt/kafka-throttle/bin:$PATH HEALTH_URL=http://127.0.0.1:9404/livez
# A number, which Kubernetes can compare with runAsNonRoot.
USER 10001:10001
WORKDIR /run/kafka-throttle
# Alive, not ready: an orchestrator that ends what is unhealthy must not end all proxies while their cluster is away.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-I", "/opt/kafka-throttle/healthcheck.py"]
ENTRYPOINT ["kafka-throttle"]
CMD ["run", "--config", "/etc/kafka-throttle/proxy.yaml"]
