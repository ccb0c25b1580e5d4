# One node. The image knows no secrets and holds no data: mount a volume at /data, and a configuration if there is one.
#   docker build -t penstock . && docker compose up
FROM python:3.11-slim AS build
COPY pyproject.toml README.md LICENSE /source/
COPY requirements /source/requirements
COPY src /source/src
# Everything is pinned by hash, what builds the wheel as well; --without-pip would spare nothing, the layer stays behind.
RUN python -m venv /opt/penstock \
 && /opt/penstock/bin/pip install --quiet --disable-pip-version-check --require-hashes -r /source/requirements/run.lock \
 && python -m pip install --quiet --disable-pip-version-check --require-hashes -r /source/requirements/build.lock \
 && python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels /source \
 && /opt/penstock/bin/pip install --quiet --disable-pip-version-check --no-deps /wheels/*.whl

FROM python:3.11-slim
COPY --from=build /opt/penstock /opt/penstock
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin penstock \
 && install -d -m 700 -o penstock -g penstock /data
ENV PATH=/opt/penstock/bin:$PATH PENSTOCK_DATA_DIR=/data PENSTOCK_LOG_FORMAT=json
USER penstock
WORKDIR /data
VOLUME /data
# NSQ by TCP (4150) and HTTP (4151), its lookup service by TCP (4160) and HTTP (4161), the admin API (7070), Arrow Flight (7071),
# M3Msg (7507), Dynamiq (8081), timelines (9000), SQS and SNS (9324).
EXPOSE 4150 4151 4160 4161 7070 7071 7507 8081 9000 9324
STOPSIGNAL SIGTERM
# Needs no token, and costs a start of Python without the program.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["python", "-m", "penstock.cli.health", "/data/node.json"]
ENTRYPOINT ["penstock"]
CMD ["up"]
