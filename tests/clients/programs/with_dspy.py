"""dspy with few-shot demos: ``BASE_URL KEY HOW TASK`` -> its answers and the history that it kept, as JSON.

``one``: a prediction. ``votes``: five of the same request, one by one (self-consistency). ``n``: two completions
of one.
"""

import json
import sys

import dspy

base_url, key, how, task = sys.argv[1:]
model = dspy.LM("openai/policy", api_base=f"{base_url}/v1", api_key=key, cache=False, num_retries=0, temperature=1.0)
dspy.configure(lm=model)
predict = dspy.Predict("question -> answer")
predict.demos = [
    dspy.Example(question="How many legs has a cat?", answer="four"),
    dspy.Example(question="How many legs has a bird?", answer="two"),
]
if how == "n":
    answers = list(predict(question=task, config={"n": 2}).completions.answer)
else:
    answers = [predict(question=task).answer for _ in range(5 if how == "votes" else 1)]
history = [{"messages": one["messages"], "outputs": len(one["outputs"])} for one in model.history]
print(json.dumps({"answers": answers, "history": history}))
