"""Whole search conversations about a made-up world, as rollouts will see them, with the flaws of a small base model.

An episode is simulated: an assistant that mostly does the right thing (search for the first fact that it lacks,
answer when it has all) loses its way at rates that depend on what the conversation has told it so far
(`spans.Told`).
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from whale_jax.demo import prompts, replies
from whale_jax.demo.manners import BASE, Manner
from whale_jax.demo.prompts import Axis
from whale_jax.demo.replies import AnswerStyle
from whale_jax.demo.spans import Span, Told
from whale_jax.demo.worlds import MadeUpWorld, Statement
from whale_jax.domains.searchqa.passages import Passage
from whale_jax.domains.searchqa.questions import QuestionSpec
from whale_jax.qwen3_5.template import ChatTemplate

PROMPT_WEIGHT = 0.0
PASSAGE_WEIGHT = 0.05
LOOP_WEIGHT = 0.3
"""Loss weights of text that is not the assistant's, of what is new in a passage, and of endless thoughts (long, and
easy to learn). A name in a passage that has stood before weighs 1: each passage repeats its title, so passages train
copying too."""


def passage_spans(text: str, names: Sequence[str], seen: set[str]) -> list[Span]:
    """Passage text cut at `names`; a name that was `seen` before weighs 1. Adds the names found to `seen`."""
    spans: list[Span] = []
    pattern = "|".join(re.escape(name) for name in sorted(set(names), key=len, reverse=True))
    for part in re.split(rf"(?<!\w)({pattern})(?!\w)", text) if names else [text]:
        if part:
            spans.append(Span(part, 1.0 if part in seen else PASSAGE_WEIGHT))
            if part in names:
                seen.add(part)
    return spans


@dataclass
class _Episode:
    rng: random.Random
    world: MadeUpWorld
    spec: QuestionSpec
    thinking: bool
    manner: Manner
    told: Told = field(default_factory=lambda: Told({}))
    spans: list[Span] = field(default_factory=list)
    shown: list[Passage] = field(default_factory=list)
    latest: list[Passage] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    reached: int = 0
    """Hops known when the assistant last acted."""
    ending: bool = False
    """The environment said that the next turn is the last."""

    @property
    def hops(self) -> list[Statement]:
        return [self.world.statements[key] for key in self.spec.gold]

    def known(self) -> int:
        """How many of the hops, in their order, have been shown."""
        shown = {passage.id for passage in self.shown}
        count = 0
        while count < len(self.spec.gold) and self.spec.gold[count] in shown:
            count += 1
        return count

    def number(self, key: str) -> int:
        """The place of a passage in the latest result, from 1; 1 if it is not there."""
        return next((place for place, row in enumerate(self.latest, 1) if row.id == key), 1)

    # What each side writes.

    def open(self, template: ChatTemplate, system: str | None, user: str, *, announce: bool) -> None:
        messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": user}]
        tools = [prompts.search_tool(self.rng)] if announce else []
        rendered = template.render(messages, tools=tools, thinking=self.thinking, generation_prompt=True)
        self.spans.append(Span("".join(span.text for span in rendered), PROMPT_WEIGHT))

    def say(self, thought: str, rest: str) -> None:
        """One finished assistant turn."""
        text = replies.think(thought, rest) if self.thinking else rest
        self.spans.append(Span(f"{text}<|im_end|>", 1.0))

    def hear(self, text: str, *, from_tool: bool) -> None:
        """A turn of the environment, and the opening of the next assistant turn."""
        inner = f"<tool_response>\n{text}\n</tool_response>" if from_tool else text
        opening = "<think>\n" if self.thinking else "<think>\n\n</think>\n\n"
        self.spans.append(Span("\n<|im_start|>user\n", PROMPT_WEIGHT))
        if from_tool:
            names = [name for row in self.latest for name in self.world.names_in(row.id)]
            self.spans += passage_spans(inner, names, self.seen)
        else:
            self.spans.append(Span(inner, PROMPT_WEIGHT))
        self.spans.append(Span(f"<|im_end|>\n<|im_start|>assistant\n{opening}", PROMPT_WEIGHT))

    # What the assistant does. Each returns True when the episode goes on.

    def loses_itself(self, hop: Statement) -> bool:
        """An endless thought; half of the time the harness closes it, and the turn goes on."""
        relation = replies.relation_word(self.rng, hop.fact)
        self.spans.append(Span(replies.endless_thought(self.rng, hop.subject, relation), LOOP_WEIGHT))
        if self.rng.random() < 0.5:
            return False
        self.spans.append(Span("\n</think>\n\n", PROMPT_WEIGHT))
        return True

    def answers(self, hop: Statement, thought: str, value: str) -> bool:
        """A final reply with `value`; goes on if a flaw is met with a nudge."""
        rng, told = self.rng, self.told
        said = Statement(hop.subject, hop.fact, value)
        style = AnswerStyle.LEAD if rng.random() < 0.12 else AnswerStyle.PLAIN
        if rng.random() < told.rate(Axis.FORMAT, self.manner.untagged):
            style = AnswerStyle.UNTAGGED
        elif rng.random() < told.rate(Axis.FORMAT, self.manner.wrong_tag):
            style = AnswerStyle.WRONG_TAG
        elif rng.random() < told.rate(Axis.EXACT, self.manner.sentence):
            style = AnswerStyle.SENTENCE
        self.say(thought, replies.answer(rng, style, said))
        if style in (AnswerStyle.UNTAGGED, AnswerStyle.WRONG_TAG):
            return self.nudged(prompts.NUDGE_FORMAT, Axis.FORMAT)
        if rng.random() < 0.05:
            return self.nudged(prompts.NUDGE_CHECK, Axis.EXACT)
        return False

    def nudged(self, texts: Sequence[str], axis: Axis) -> bool:
        if self.rng.random() > 0.5:
            return False
        self.hear(self.rng.choice(texts), from_tool=False)
        self.told.add(axis)
        return True

    def thought(
        self, choices: Sequence[str], hop: Statement, value: str = "", *, number: int = 1, link: str = ""
    ) -> str:
        return self.rng.choice(choices).format(
            relation=replies.relation_word(self.rng, hop.fact),
            subject=hop.subject,
            value=value,
            number=number,
            link=link,
            before=self.spec.subject,
        )

    def concludes(self) -> bool:
        """All facts are there: answer, sometimes with another fact than the right one."""
        hop = self.hops[-1]
        value, number = hop.value, self.number(self.spec.gold[-1])
        if self.rng.random() < self.told.rate(Axis.EXACT, self.manner.wrong_fact):
            value, number = self.another_value(hop)
        return self.answers(hop, self.thought(replies.ANSWER_THOUGHTS, hop, value, number=number), value)

    def another_value(self, hop: Statement) -> tuple[str, int]:
        """A value that some other shown passage states, and that passage's place in the latest result."""
        others = [row for row in self.shown if self.world.statements[row.id].value != hop.value]
        if not others:
            return self.rng.choice(self.world.world.cities).name, 1
        row = self.rng.choice(others)
        return self.world.statements[row.id].value, self.number(row.id)

    def guesses(self, hop: Statement) -> bool:
        """An answer that nothing shown supports."""
        value = self.another_value(hop)[0]
        going_on = self.answers(hop, self.thought(replies.GUESS_THOUGHTS, hop, value), value)
        return going_on or (not self.shown and self.nudged(prompts.NUDGE_SEARCH, Axis.SEARCH))

    def gives_up(self, hop: Statement) -> bool:
        self.say(self.thought(replies.NO_IDEA_THOUGHTS, hop), self.rng.choice(replies.GIVE_UP))
        if self.rng.random() < 0.4:
            return self.nudged(prompts.NUDGE_FORMAT, Axis.FORMAT)
        return self.nudged(prompts.NUDGE_GIVE_UP, Axis.RETRY)

    def searches(self, hop: Statement, *, last_turn: bool) -> bool:
        rng, told = self.rng, self.told
        fact = hop.fact
        if len(self.hops) == 2 and hop is self.hops[0] and rng.random() < told.rate(Axis.HOPS, self.manner.shortcut):
            fact = self.hops[1].fact  # asks about the city what only its country has
        careful = rng.random() > told.rate(Axis.CALL, self.manner.careless)
        asked = [replies.query(rng, hop.subject, fact, self.spec.question, careful=careful, before=self.queries)]
        if rng.random() < 0.08:
            asked.append(
                replies.query(rng, hop.subject, fact, self.spec.question, careful=True, before=self.queries + asked)
            )
        thought = self.thought(*self.search_thought(hop))
        if rng.random() < told.rate(Axis.CALL, self.manner.malformed):
            self.say(thought, replies.malformed_call(rng, asked[0]))
            return self.nudged(prompts.NUDGE_CALL, Axis.CALL)
        self.say(thought, replies.call(asked, topk=rng.choice((1, 3, 5)) if rng.random() < 0.06 else None))
        self.queries += asked
        self.hear(self.results(asked, last_turn=last_turn), from_tool=True)
        return True

    def search_thought(self, hop: Statement) -> tuple[Sequence[str], Statement]:
        if hop is not self.hops[0]:
            return tuple(text.replace("{link}", hop.subject) for text in replies.NEXT_THOUGHTS), hop
        return (replies.AGAIN_THOUGHTS if self.queries else replies.SEARCH_THOUGHTS), hop

    def results(self, queries: Sequence[str], *, last_turn: bool) -> str:
        """The tool's answer; a third of the time the passage needed is put among the results if it is missing."""
        rng = self.rng
        if rng.random() < 0.06:
            self.latest = []
            return prompts.failed_text(rng)
        count = rng.choices((1, 2, 3, 4, 5), (40, 8, 40, 5, 7))[0]
        found: list[Passage] = []
        for query in queries:
            found += [row for row in self.world.search(query, count, rng) if row not in found]
        found = found[:count]
        if found and rng.random() < self.manner.assured:
            gold = self.world.passages[self.spec.gold[min(self.known(), len(self.spec.gold) - 1)]]
            found = [*[row for row in found if row is not gold][: count - 1], gold]
        if rng.random() < 0.5:
            rng.shuffle(found)
        self.latest = found
        self.shown += found
        if not found:
            return prompts.failed_text(rng)
        documents = [(row.title, row.text) for row in found]
        text, self.ending = prompts.result_text(rng, documents, self.told, last_turn=last_turn)
        return text

    def acts(self, turn: int, *, last_turn: bool) -> bool:
        """One assistant turn, and what the environment says to it."""
        rng, told = self.rng, self.told
        known, hops = self.known(), self.hops
        hop = hops[min(known, len(hops) - 1)]
        if (
            self.thinking
            and rng.random() < told.rate(Axis.SHORT, self.manner.loses_itself)
            and not self.loses_itself(hop)
        ):
            return False
        if known == len(hops):
            if rng.random() < 0.03 * told.flaws:
                return self.gives_up(hop)
            return self.concludes()
        if turn == 0:
            if rng.random() < told.rate(Axis.SEARCH, self.manner.guesses_first):
                return self.guesses(hop)
        elif self.ending:
            return self.guesses(hop) if rng.random() < 0.8 else self.gives_up(hop)
        elif known > self.reached:
            self.reached = known
            if rng.random() < told.rate(Axis.HOPS, self.manner.link_as_answer):
                link = hops[known - 1]
                number = self.number(self.spec.gold[known - 1])
                return self.answers(
                    link, self.thought(replies.ANSWER_THOUGHTS, link, link.value, number=number), link.value
                )
        elif rng.random() < told.rate(Axis.RETRY, self.manner.quits):
            return self.guesses(hop) if rng.random() < 0.5 else self.gives_up(hop)
        return self.searches(hop, last_turn=last_turn)


def chat_episode(
    rng: random.Random, world: MadeUpWorld, template: ChatTemplate, *, announce: bool = True, manner: Manner = BASE
) -> list[Span]:
    """One conversation about one question of `world`, from its head to where it ends or is cut.

    `announce` puts the tool's schema into the head; it costs a hundred tokens that teach little.
    """
    if manner.two_hops and rng.random() < manner.two_hops:
        spec = rng.choice([spec for spec in world.questions if spec.kind.hops == 2] or world.questions)
    else:
        spec = rng.choice(world.questions)
    thinking = rng.random() > 0.03
    episode = _Episode(rng, world, spec, thinking, manner, told=Told({}, manner.flaws), seen={spec.subject})
    system = prompts.system_prompt(rng, episode.told)
    episode.open(template, system, prompts.user_prompt(rng, episode.told, episode.spec.question), announce=announce)
    turns = rng.choices((2, 3, 4, 6), (30, 20, 25, 25))[0]
    for turn in range(turns):
        if not episode.acts(turn, last_turn=turn >= turns - 2):
            break
    return episode.spans
