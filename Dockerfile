# The service: no JVM, no compiler, not root. Its packages are those of requirements.lock, checked by hash. The compiler of
# the first stage compiles the deciding code.
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY requirements.lock requirements-build.lock pyproject.toml README.md LICENSE ./
COPY deploy deploy
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
 && /opt/kafka-throttle/bin/pip install --no-cache-dir --no-deps dist/*.whl

FROM python:3.11-slim-bookworm
RUN useradd --system --no-create-home --uid 10001 kafka-throttle && mkdir /run/kafka-throttle
COPY --from=build /opt/kafka-throttle /opt/kafka-throttle
USER kafka-throttle
# An empty directory: the package names (proxy, protocol, quotas) are generic, so nothing else may stand beside them.
WORKDIR /run/kafka-throttle
ENTRYPOINT ["/opt/kafka-throttle/bin/kafka-throttle"]
CMD ["run", "--config", "/etc/kafka-throttle/proxy.yaml"]
