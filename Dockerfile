# The studio on a CPU: gateway on 8100, pages on 8501, data in the volume /data.
#
#   docker build -t claw-studio .
#   docker run -e CLAW_STUDIO_API_KEY="$(openssl rand -hex 16)" -p 8100:8100 -p 8501:8501 -v claw-data:/data claw-studio
#
# Both ports are open to the network, so the admin key is required (docs/security.md).
FROM python:3.11-slim
COPY . /src
RUN /src/docker/install /src /opt/claw-studio && rm -rf /src
ENV CLAW_STUDIO_DATA_DIR=/data CLAW_STUDIO_HOST=0.0.0.0 STREAMLIT_SERVER_ADDRESS=0.0.0.0 \
    LITELLM_LOCAL_MODEL_COST_MAP=True HF_HUB_OFFLINE=1
RUN useradd --create-home claw && mkdir /data && chown claw /data
USER claw
WORKDIR /home/claw
VOLUME /data
EXPOSE 8100 8501
HEALTHCHECK CMD ["/opt/claw-studio/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8100/healthz')"]
CMD ["/opt/claw-studio/bin/claw-studio"]
