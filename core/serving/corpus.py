# ruff: noqa: SIM905  (a word list reads better as lines of words)
"""Synthetic text that the shipped tokenizer is trained on: prose, code, JSON, paths, shell, tool calls.

A seeded generator composes it from the word lists below. The tokenizer can therefore be rebuilt byte for byte, and
it contains no third-party text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

NOUNS = """account action address agent amount animal answer area array article author balance batch block
board body book branch bridge bucket buffer building button cache call car case cell chain change channel
character chart child choice city class client clock code colour column command comment commit company
component computer condition connection container content context control copy corner cost count country
crash cursor customer data database date day default definition delta design detail device dictionary
difference directory distance document door edge editor effect email engine entry environment error event
example exception experiment export expression factor failure family feature field figure file filter
flag flow folder food form format frame friend function garden gateway goal graph group growth guard half
hand handle hash head header health heap height history home host hour house idea image import index
information input instance integer interface island issue item job journal judge key kind kitchen label
language layer layout leaf lease length letter level library light limit line link list load lock log
loop loss machine machine manager map margin mark market mask match matrix mean measure meeting member
memory menu merge message method metric middle minute mistake mode model module moment money month morning
motor mountain name network night node note notebook number object offset office operation operator option
order output owner package page pair panel paper paragraph parameter parent park parser part path pattern
people percent period person phase picture piece pipe place plan plant plot point policy pool port
position power prefix presence price problem process product profile program project prompt property
proposal purpose quality quantity query question queue race range rate ratio reason recipe record region
register release reply report request resource response rest result return reward river road role rollout
root route row rule run sample scale schedule schema school score screen script search season second
section segment sentence sequence series server service session set shape share shelf shell side sign
signal size slot snapshot solution source space span speed square stage standard start state station step
stock stone store story stream street string structure student studio style suffix sum summary summer
surface switch symbol system table tag target task teacher team template term test text theme thing thread
threshold ticket time title token tool topic total town trace track trainer trajectory transition travel
tree trial truth tuple turn type unit update user value variable vector version view village voice volume
wait walk wall water weather week weight wheel width wind window winter word worker world writer year zone
""".split()

VERBS = """accept add adjust allow answer append apply arrive ask assign attach avoid become begin believe
belong bring build call cancel carry change check choose clean close collect combine compare complete
compute confirm connect consider contain continue convert copy correct count create cut decide declare
delete deliver depend describe design detect discover divide draw drop encode end enter estimate evaluate
examine exclude execute expect explain export extend fail fetch fill find finish fit fix follow forget
format gather generate get give go group grow guess handle happen help hold ignore import improve include
increase insert inspect join jump keep know label learn leave list load log look lose make manage map mark
match measure merge miss move name need note notice offer open order parse pass pay pick place plan print
produce promise prove provide publish pull push put raise reach read receive record reduce refuse register
reject release remember remove rename repeat replace reply report request resolve restart return reuse
reverse review rewrite round run sample save scan search select send serve set share show shrink sign skip
sleep sort split start stay stop store stream submit suggest sum support sync take tell test think trace
track train translate travel trim try turn understand update upload use validate verify visit wait walk
want warn watch work wrap write""".split()

ADJECTIVES = """able absolute active actual alive ancient automatic available average bad basic big blue
bright broken careful certain cheap clean clear close cold common complete complex constant correct current
deep different difficult direct double dry early easy empty equal exact expensive extra fair false fast
final fine first flat foreign free frequent fresh full general good great green happy hard heavy hidden
high honest hot huge important independent initial inner invalid large last late light linear little local
long loud low main maximal minimal missing modern narrow natural necessary negative new next nice normal
obvious odd old open optional original outer own partial perfect plain poor popular positive possible
previous private proper public pure quick quiet random raw ready real recent red regular relative remote
rich right rough round safe same sensible separate serious sharp short silent similar simple single slow
small smooth soft solid special stable stale standard strange strict strong sudden sure sweet tall thick
thin tiny total true typical unique unknown useful usual valid visible warm weak whole wide wild wrong
young""".split()

ADVERBS = """again almost already also always carefully certainly clearly completely directly early easily
enough entirely exactly finally first here immediately indeed instead just later maybe mostly nearly never
next now often once only perhaps probably quickly quietly quite rarely rather really simply slowly sometimes
soon still suddenly then there therefore together too twice usually very well yesterday yet""".split()

GLUE = """a about above across after against all along although am among an and another any are around as at
be because been before behind being below beneath beside between beyond both but by can could did do does
done down during each either else every few for from had has have he her here him his how however i if in
inside into is it its itself least less like many may me might more most much must my near neither no nor
not nothing of off on one or other our ours out over own per same shall she should since so some something
such than that the their them themselves these they this those though three through thus to toward two under
until up upon us was we were what when where whether which while who whose why will with within without
would you your yours""".split()

TYPES = "int str float bool bytes None list dict set tuple Path object Any Iterator Sequence Mapping".split()
EXTENSIONS = "py json jsonl md txt csv toml yaml sh js ts html css sql log parquet lock ini".split()
FOLDERS = "src core tests docs data home tmp var etc usr bin lib app workspace reports notes build".split()
ROLES = "system user assistant tool".split()
UNITS = "s ms kB MB GB % px items rows tokens steps".split()


class _Writer:
    """Generates text from one seeded random stream; each method returns text of one genre."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.genres: tuple[tuple[Callable[[], str], int], ...] = (
            (self.paragraph, 9),
            (self.code, 6),
            (self.record, 4),
            (self.tool_call, 4),
            (self.markdown, 3),
            (self.shell, 3),
            (self.table, 2),
            (self.log, 2),
        )

    def noun(self) -> str:
        word = self.rng.choice(NOUNS)
        return _plural(word) if self.rng.random() < 0.3 else word

    def verb(self) -> str:
        word, form = self.rng.choice(VERBS), self.rng.random()
        if form < 0.2:
            return _plural(word)
        if form < 0.35:
            return (word[:-1] if word.endswith("e") else word) + "ing"
        return word + ("d" if word.endswith("e") else "ed") if form < 0.5 else word

    def sentence(self) -> str:
        rng = self.rng
        words: list[str] = []
        for _ in range(rng.randint(2, 5)):
            words += rng.choices(GLUE, k=rng.randint(1, 3))
            words.append(rng.choice(ADJECTIVES)) if rng.random() < 0.5 else None
            words.append(self.noun())
            words.append(self.verb())
            if rng.random() < 0.3:
                words.append(rng.choice(ADVERBS))
            if rng.random() < 0.1:
                words[-1] += ","
        text = " ".join(words)
        if rng.random() < 0.15:
            text = text.replace(" is ", " isn't ").replace(" do ", " don't ").replace(" it ", " it's ", 1)
        return text[0].upper() + text[1:] + rng.choice(("." * 1, ".", ".", "?", "!", ":"))

    def paragraph(self) -> str:
        return " ".join(self.sentence() for _ in range(self.rng.randint(2, 6)))

    def identifier(self) -> str:
        rng = self.rng
        parts = [rng.choice(VERBS), rng.choice(NOUNS)] if rng.random() < 0.6 else [rng.choice(NOUNS)]
        if rng.random() < 0.3:
            parts.append(rng.choice(("id", "uid", "at", "n", "path", "name", "count", "s")))
        style = rng.random()
        if style < 0.7:
            return "_".join(parts)
        return "".join(p.title() for p in parts) if style < 0.9 else "_".join(parts).upper()

    def path(self) -> str:
        rng = self.rng
        folders = rng.choices(FOLDERS, k=rng.randint(0, 3))
        name = f"{self.identifier().lower()}.{rng.choice(EXTENSIONS)}"
        return rng.choice(("/", "./", "")) + "/".join([*folders, name])

    def number(self) -> str:
        rng = self.rng
        return rng.choice(
            (str(rng.randint(0, 99999)), f"{rng.uniform(0, 100):.{rng.randint(1, 3)}f}", f"{rng.random():.4f}")
        )

    def value(self, depth: int = 0) -> object:
        rng, pick = self.rng, self.rng.random()
        if pick < 0.25:
            return rng.randint(-5, 5000)
        if pick < 0.35:
            return round(rng.uniform(-1, 1), rng.randint(1, 4))
        if pick < 0.45:
            return rng.choice((True, False, None))
        if pick < 0.6:
            return self.path()
        if pick < 0.85 or depth > 1:
            return rng.choice((self.sentence, self.noun, self.identifier))()
        if pick < 0.93:
            return [self.value(depth + 1) for _ in range(rng.randint(0, 3))]
        return {self.identifier().lower(): self.value(depth + 1) for _ in range(rng.randint(1, 3))}

    def record(self) -> str:
        body = {self.identifier().lower(): self.value() for _ in range(self.rng.randint(2, 6))}
        indent = 2 if self.rng.random() < 0.4 else None
        return json.dumps(body, indent=indent, ensure_ascii=False)

    def tool_call(self) -> str:
        rng = self.rng
        name = rng.choice(("read_file", "write_file", "list_files", "run", "search", "finish", "bash", "edit"))
        arguments = {"path": self.path(), rng.choice(("content", "query", "command")): self.sentence()}
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        schema = {
            "type": "function",
            "function": {
                "name": name,
                "description": self.sentence(),
                "parameters": {
                    "type": "object",
                    "properties": {"path": {"type": "string", "description": self.sentence()}},
                    "required": ["path"],
                },
            },
        }
        return rng.choice((call, call, json.dumps(schema))) + "\n" + rng.choice(ROLES)

    def code(self) -> str:
        rng = self.rng
        name, arg, other = (self.identifier().lower() for _ in range(3))
        lines = [
            f"import {rng.choice(('json', 'os', 'sys', 'pathlib', 're', 'csv', 'math', 'time'))}",
            f"def {name}({arg}: {rng.choice(TYPES)}, {other}={self.number()}) -> {rng.choice(TYPES)}:",
            f'    """{self.sentence()}"""',
            f"    for {rng.choice(NOUNS)} in {arg}:",
            f"        if {other} {rng.choice(('==', '!=', '<', '>=', 'in', 'is not'))} {self.number()}:",
            f'            raise ValueError(f"{{{arg}}} {rng.choice(GLUE)} {self.noun()}")',
            f"        {self.identifier().lower()}.{rng.choice(VERBS)}({arg}[{rng.randint(0, 9)}])",
            f"    return {other}",
        ]
        extra = [
            f"class {self.identifier().title().replace('_', '')}(object):",
            f"    self.{name} = {{'{other}': {self.number()}}}",
            f"const {arg} = async ({other}) => {{ await {name}({other}); }};",
            f"SELECT {arg}, count(*) FROM {other} WHERE {arg} = ? GROUP BY {arg} ORDER BY {other} LIMIT 10;",
            f"with open({arg!r}) as handle:\n    print(handle.read())",
        ]
        return "\n".join(lines[: rng.randint(2, len(lines))] + rng.sample(extra, k=rng.randint(0, 2)))

    def markdown(self) -> str:
        items = "\n".join(f"- `{self.path()}`: {self.sentence()}" for _ in range(self.rng.randint(1, 4)))
        return f"## {self.sentence()[:-1]}\n\n{self.paragraph()}\n\n{items}\n\n**{self.noun()}** = {self.number()}"

    def shell(self) -> str:
        rng = self.rng
        heads = (
            "ls -la",
            "cat",
            "grep -n",
            "python -m pytest",
            "git commit -m",
            "git diff",
            "cd",
            "mkdir -p",
            "rm -f",
            "find . -name",
            "head -n 20",
            "wc -l",
            "curl http://localhost:8000/v1",
            "sed -n",
        )
        return "\n".join(f"$ {rng.choice(heads)} {self.path()}" for _ in range(rng.randint(1, 3)))

    def table(self) -> str:
        header = ",".join(self.identifier().lower() for _ in range(4))
        rows = [",".join((self.noun(), self.number(), self.number(), self.path())) for _ in range(4)]
        return "\n".join([header, *rows])

    def log(self) -> str:
        rng = self.rng
        level = rng.choice(("INFO", "WARNING", "ERROR", "DEBUG"))
        stamp = f"20{rng.randint(10, 40)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}"
        return f"{stamp}:00:00Z {level} {self.identifier()}: {self.sentence()} ({self.number()} {rng.choice(UNITS)})"


def documents(seed: int, n_documents: int) -> Iterator[str]:
    """Yield ``n_documents`` texts; the same seed gives the same texts."""
    writer = _Writer(random.Random(seed))
    makers = [maker for maker, _ in writer.genres]
    weights = [weight for _, weight in writer.genres]
    for _ in range(n_documents):
        yield writer.rng.choices(makers, weights)[0]()


def _plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"
