# The studio beside Ray, for the nodes of a cluster (docs/cluster.md). Build it from the root of the repository:
#
#   docker build -t claw-studio-ray -f docker/ray.Dockerfile --build-arg RAY=2.60.0 .
#
# KubeRay starts Ray; `claw-studio cluster up` starts the studio.
FROM python:3.11-slim
ARG RAY=2.60.0
# KubeRay's probes use wget.
RUN apt-get update && apt-get install -yq --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN /src/docker/install /src /opt/claw-studio && \
    /opt/claw-studio/bin/python -m pip install -q "ray[default]==$RAY" "s3fs>=2025.3" && rm -rf /src
ENV PATH=/opt/claw-studio/bin:$PATH LITELLM_LOCAL_MODEL_COST_MAP=True HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
RUN useradd --uid 1000 --create-home claw && mkdir /data /journal && chown claw /data /journal
USER claw
WORKDIR /home/claw
EXPOSE 6379 8100 8199 8265
