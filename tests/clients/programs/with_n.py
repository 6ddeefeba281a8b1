"""Two answers to one request, and a further turn on each: ``HOW BASE_URL KEY TASK`` -> what it got, as JSON.

``sdk``, ``sdk_stream``, ``sdk_ids``: OpenAI's SDK, chats whole and streamed, and completions by token ids.
``langchain``: LangChain's ``generate``. All go on from the second answer, and after that from the first.
"""

import json
import sys

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI

how, base_url, key, task = sys.argv[1:]
client = OpenAI(base_url=f"{base_url}/v1", api_key=key, max_retries=0)
messages = [{"role": "user", "content": task}]
NEXT = "Are you sure?"
IDS = {"return_token_ids": True}


def of_ids() -> tuple[list[str], list[str]]:
    choices = client.completions.create(model="policy", prompt=task, n=2, temperature=1.0, extra_body=IDS).choices
    prompts = [[*choice.prompt_token_ids, *choice.token_ids, 10] for choice in reversed(choices)]
    further = [client.completions.create(model="policy", prompt=prompt, extra_body=IDS) for prompt in prompts]
    return [choice.text for choice in choices], [answer.choices[0].text for answer in further]


def two() -> list[str]:
    if how == "langchain":
        model = ChatOpenAI(model="policy", base_url=f"{base_url}/v1", api_key=key, max_retries=0, n=2)
        return [one.text for one in model.generate([[HumanMessage(task)]]).generations[0]]
    if how == "sdk":
        answer = client.chat.completions.create(model="policy", messages=messages, n=2, temperature=1.0)
        return [choice.message.content for choice in answer.choices]
    texts = ["", ""]
    for chunk in client.chat.completions.create(model="policy", messages=messages, n=2, temperature=1.0, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    return texts


def further(text: str) -> str:
    if how == "langchain":
        model = ChatOpenAI(model="policy", base_url=f"{base_url}/v1", api_key=key, max_retries=0)
        return model.invoke([("user", task), ("assistant", text), ("user", NEXT)]).text
    talk = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": NEXT}]
    return client.chat.completions.create(model="policy", messages=talk).choices[0].message.content


if how == "sdk_ids":
    answers, more = of_ids()
else:
    answers = two()
    more = [further(text) for text in reversed(answers)]
print(json.dumps({"answers": answers, "further": more}))
