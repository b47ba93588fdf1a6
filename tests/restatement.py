"""A restatement of the definition of batches, in plain Python.

It makes one example at a time, with lists and loops, and drops tokens one by one like
the original. It shares only the reader of shards with the package.
"""

import collections
import functools
import itertools
import math
from fractions import Fraction

from bert_jax.corpus import shards

M = 2**64 - 1
# Rows of several corpora whose shares are exact.
BLOCK = 2**16
# Purposes of streams.
ORDER, SEGMENTS, POSITION, ACTION, SPAN, COUNT, AIMS, PACKING = range(8)
TARGETS, PLACES, MIXING = 8, 9, 10


def word(key, index):
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & M
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
    return z ^ (z >> 31)


def below(random, bound):
    return ((random >> 32) * bound) >> 32


def chance(random, probability):
    return (random >> 32) < math.floor(probability * 2**32)


def fraction(random):
    return (random >> 32) / 2**32


def harmonic(key, index, most):
    """Draw from 1 to `most`, with probabilities as 1, 1/2, 1/3 and so on."""
    total = sum(1 / n for n in range(1, most + 1))
    draw, n, reached = fraction(word(key, index)), 1, 1.0
    while n < most and draw >= reached / total:
        n += 1
        reached += 1 / n
    return n


def permute(index, size, key):
    height = math.ceil(math.sqrt(size))
    width = math.ceil(size / height)
    while True:
        left, right = divmod(index, width)
        for i in range(6):
            round_key = word(key, i)
            if i % 2 == 0:
                left = (left + below(word(round_key, right), height)) % height
            else:
                right = (right + below(word(round_key, left), width)) % width
        index = left * width + right
        if index < size:
            return index


def read_documents(corpus, split, group, groups):
    """Return documents as lists of sentences, which are lists of ids."""
    every = corpus.shards[split]
    total = sum(shard.tokens for shard in every)
    begin, end = total * group // groups, total * (group + 1) // groups
    documents, offset = [], 0
    for shard in (s for i in range(groups) for s in every[i::groups]):
        for rows in shards.read_shard(corpus.folder, shard):
            starts = rows.sentence_starts
            sentences = [
                rows.tokens[a:b].tolist() for a, b in itertools.pairwise(starts)
            ]
            for first, last in itertools.pairwise(rows.document_sentences):
                document = []
                for sentence in sentences[first:last]:
                    own = sentence[max(begin - offset, 0) : max(end - offset, 0)]
                    document += [own] if own else []
                    offset += len(sentence)
                documents += [document] if document else []
    return documents


def key_of(config, *path):
    """Return the key at a path of split, phase and group."""
    key = 0
    for index in (config.seed, *path):
        key = word(key, index)
    return key


def phases_before(config, phase):
    """Return the earlier phases with the length of a phase."""
    length = config.phases[phase].length
    return [i for i in range(phase) if config.phases[i].length == length]


def rows_of_phase(config, phase):
    """Return the number of rows of a phase in one group of shards."""
    phase = config.phases[phase]
    return phase.steps * phase.batch_size // config.data.shard_groups


@functools.cache
def deal(key, counts, block):
    """Return the rounds of a block, as lists of a corpus and its row."""
    deck = [number for number, count in enumerate(counts) for _ in range(count)]
    num_rounds, rounds = BLOCK // 256, []
    next_rows = [block * count for count in counts]
    for i in range(num_rounds):
        hand = permute(i, num_rounds, word(word(key, block), num_rounds))
        rounds.append([])
        for number in deck[hand::num_rounds]:
            rounds[-1].append((number, next_rows[number]))
            next_rows[number] += 1
    return rounds


def in_block(weights):
    """Return the rows of each corpus in a block."""
    exact = [Fraction(w) / sum(map(Fraction, weights)) * BLOCK for w in weights]
    counts = [math.floor(x) for x in exact]
    left = BLOCK - sum(counts)
    for i in sorted(range(len(exact)), key=lambda i: -(exact[i] % 1))[:left]:
        counts[i] += 1
    return counts


class Mixture:
    """The rows of a phase of several corpora, for one group of the shards of each."""

    def __init__(self, corpora, config, weights, phase=0, *, group=0):
        self.config, self.group = config, group
        self.parts = [
            Reference(corpus, config, phase, group=group, number=i)
            for i, corpus in enumerate(corpora)
        ]
        # Rows to take first, and the first row to take after these.
        self.left, self.next = [[] for _ in corpora], [0 for _ in corpora]
        self.begin, self.counts = 0, None
        for i in [*phases_before(config, phase), phase]:
            counts = in_block(config.phases[i].corpus_weights or weights)
            if counts != self.counts:
                if self.counts:
                    self.end_mixing()
                self.begin_mixing(i, counts)
            if i < phase:
                self.begin += rows_of_phase(config, i)

    def begin_mixing(self, phase, counts):
        """Begin a mixture with other rows in a block."""
        self.begin, self.counts = 0, counts
        self.key = word(key_of(self.config, 0, phase, self.group), MIXING)

    def end_mixing(self):
        """Find the rows that are left of each corpus: first the rest of the block."""
        end = (self.begin // BLOCK + 1) * BLOCK
        left = [[] for _ in self.parts]
        for position in range(self.begin, end):
            number, own = self.at(position)
            left[number].append(own)
        for number, count in enumerate(self.counts):
            taken = count * (end // BLOCK)
            untouched = self.left[number][taken:]
            self.next[number] += max(taken - len(self.left[number]), 0)
            self.left[number] = left[number] + untouched

    def at(self, position):
        """Return the corpus at a position, and the row of this corpus."""
        block, i = position // BLOCK, position % BLOCK // 256
        card = permute(position % 256, 256, word(word(self.key, block), i))
        number, own = deal(self.key, tuple(self.counts), block)[i][card]
        left = self.left[number]
        if own < len(left):
            return number, left[own]
        return number, self.next[number] + own - len(left)

    def row(self, position):
        """Return the row at a position of the phase."""
        number, own = self.at(self.begin + position)
        return self.parts[number].row_in_order(own)


class Reference:
    """The rows of a phase, for one group of shards."""

    def __init__(self, corpus, config, phase=0, *, split="train", group=0, number=0):
        self.objective = config.objective
        self.length = config.phases[phase].length
        self.tokenizer = corpus.tokenizer
        groups = config.data.shard_groups if split == "train" else 1
        earlier = phases_before(config, phase)
        number = number * groups + group
        first = [*earlier, phase][0]
        self.key = key_of(config, shards.SPLITS.index(split), first, number)
        self.begin = 0
        if split == "train":
            self.begin = sum(rows_of_phase(config, i) for i in earlier)
        self.S = config.objective.examples_per_row
        self.documents = self.cut(read_documents(corpus, split, group, groups))
        self.chunks = self.make_chunks()
        # Lists of chunks.
        self.rows = [[c] for c in range(len(self.chunks))]
        if self.S > 1:
            self.rows = self.pack()
        masking = config.objective.masking
        if masking:
            self.rate = config.phases[phase].masking_rate or masking.rate
        self.is_permuted = config.objective.kind == "permutation_lm"
        if self.is_permuted:
            self.P = max(1, (self.length - 1) // config.objective.context)
        self.row_P = None
        if masking:
            rate = max(self.rate, masking.eval_rate)
            of_rates = math.ceil(rate * self.length - 1e-9)
            if split == "held_out":
                self.rate = masking.eval_rate
            # Of an example, and of a row.
            self.P = min(self.length, masking.max_predictions or of_rates)
            self.row_P = self.P
            if self.S > 1:
                self.row_P = min(self.S * self.P, of_rates + self.S - 1, self.length)

    @property
    def is_pair(self):
        return not self.objective.segments.endswith("sentences")

    @property
    def target(self):
        return self.length - (3 if self.is_pair else 2)

    def cut(self, documents):
        """Cut long sentences into parts of a row, or of half a row for pairs."""
        size = math.ceil(self.target / (1 + self.is_pair))

        def parts(sentence):
            if len(sentence) <= self.target:
                return [sentence]
            return [sentence[i : i + size] for i in range(0, len(sentence), size)]

        return [sum(map(parts, document), []) for document in documents]

    def make_chunks(self):
        """Return lists of (document, piece)."""
        documents = [[(d, p) for p in ps] for d, ps in enumerate(self.documents)]
        if not self.is_pair and self.S == 1:
            if self.objective.segments == "full_sentences":
                documents = [sum(documents, [])]
            return [chunk for pieces in documents for chunk in self.fill(pieces)]
        chunks, number = [], 0
        for pieces in documents:
            chunk, room = None, 0
            for piece in pieces:
                if not chunk or (room <= 0 and len(chunk) >= 1 + self.is_pair):
                    chunk, room = [], self.aim(number)
                    chunks.append(chunk)
                chunk.append(piece)
                room -= len(piece[1])
                number += 1
        return chunks

    def aim(self, number):
        """Return the target of a chunk that begins with a piece."""
        if self.S == 1:
            return self.target
        return self.goal(word(word(self.key, AIMS), number))[0]

    # ---- packing

    def tokens_of(self, c):
        count = sum(len(piece) for _, piece in self.chunks[c])
        return min(max(count, 2 if self.is_pair else 1), self.target)

    def pack(self):
        """Return rows, as lists of chunks, by best fit, decreasing, one by one."""
        size = [
            self.tokens_of(c) + self.length - self.target
            for c in range(len(self.chunks))
        ]
        key = word(self.key, PACKING)
        rows, rooms = [], []
        for c in sorted(
            range(len(self.chunks)), key=lambda c: (-size[c], word(key, c))
        ):
            fitting = [
                (room, i)
                for i, room in enumerate(rooms)
                if room >= size[c] and len(rows[i]) < self.S
            ]
            if fitting:
                i = min(fitting)[1]
            else:
                i = len(rows)
                rows.append([])
                rooms.append(self.length)
            rows[i].append(c)
            rooms[i] -= size[c]
        return rows

    def packed_row(self, examples):
        """Return a row of examples, end to end."""
        row = collections.defaultdict(list)
        for number, example in enumerate(examples):
            before = len(row["positions"])
            count = sum(example["attention_mask"])
            row["documents"] += [number] * count
            row["positions"] += range(count)
            row["pooled_positions"].append(before)
            used = int(sum(example.get("mlm_weights", ())))
            for name, value in example.items():
                if name == "mlm_positions":
                    row[name] += [before + x for x in value[:used]]
                elif isinstance(value, list):
                    row[name] += value[: used if name.startswith("mlm") else count]
                else:
                    row[name].append(value)
        if "weights" in row:
            row["weights"] = row["weights"][0]
        if not any(name.endswith(("nsp_labels", "sop_labels")) for name in row):
            del row["pooled_positions"]
        for name in row.keys() - {"weights"}:
            width = {"mlm": self.row_P, "nsp": self.S, "sop": self.S, "poo": self.S}
            width = width.get(name[:3], self.length)
            empty = self.tokenizer.pad_id if name == "input_ids" else 0
            row[name] += [empty] * (width - len(row[name]))
        return row

    def fill(self, pieces):
        """Return chunks that fit in a row."""
        chunks = [[]]
        for piece in pieces:
            chunk = [*chunks[-1], piece]
            if len(self.joined(chunk)) > self.target:
                chunks.append([piece])
            else:
                chunks[-1] = chunk
        return chunks

    def joined(self, chunk):
        """Return the tokens of pieces, with [SEP] between two documents."""
        tokens = []
        for i, (document, piece) in enumerate(chunk):
            if i and document != chunk[i - 1][0]:
                tokens.append(self.tokenizer.sep_id)
            tokens += piece
        return tokens

    def row_at(self, position):
        """Return epoch and chunks of the row at a position in the order."""
        epoch, index = divmod(position, len(self.rows))
        order = word(word(self.key, ORDER), epoch)
        return epoch, self.rows[permute(index, len(self.rows), order)]

    def row(self, position):
        """Return the row at a position of the phase."""
        return self.row_in_order(self.begin + position)

    def row_in_order(self, position):
        """Return the row at a position in the order."""
        epoch, chunks = self.row_at(position)
        examples = [self.example(c, epoch) for c in chunks]
        return self.packed_row(examples) if self.S > 1 else examples[0]

    def example(self, c, epoch):
        """Return the example of a chunk."""
        keys = [word(word(word(self.key, p), epoch), c) for p in range(10)]
        t = self.tokenizer
        row = {}
        if self.is_pair:
            a, b, label = self.pair(c, keys[SEGMENTS])
            self.trim(a, b, self.room(c), keys[SEGMENTS])
            ids = [t.cls_id, *a, t.sep_id, *b, *([t.sep_id] if b else [])]
            segments = [0] * (len(a) + 2) + [1] * (len(ids) - len(a) - 2)
            row["segment_ids"] = segments + [0] * (self.length - len(ids))
            names = {"next_sentence": "nsp", "sentence_order": "sop"}
            question = names.get(self.objective.segments)
            if question:
                row[f"{question}_labels"] = int(label)
                row[f"{question}_weights"] = float(bool(b))
        else:
            ids = [t.cls_id, *self.stretch(c, keys[SEGMENTS]), t.sep_id]
        padding = [t.pad_id] * (self.length - len(ids))
        row["attention_mask"] = [True] * len(ids) + [False] * len(padding)
        if self.is_permuted:
            targets, ranks = self.permutation(ids, keys)
            empty = [0] * (self.P - len(targets))
            return {
                **row,
                "input_ids": ids + padding,
                "ranks": ranks + [-1] * len(padding),
                "target_positions": targets + empty,
                "target_labels": [ids[i] for i in targets] + empty,
                "target_weights": [1.0] * len(targets) + [0.0] * len(empty),
            }
        if not self.objective.masking:
            return {**row, "input_ids": ids + padding, "weights": 1.0}
        positions, labels = self.mask(ids, keys)
        empty = [0] * (self.P - len(positions))
        return {
            **row,
            "input_ids": ids + padding,
            "mlm_positions": positions + empty,
            "mlm_labels": labels + empty,
            "mlm_weights": [1.0] * len(positions) + [0.0] * len(empty),
        }

    # ---- segments

    def goal(self, key):
        """Return the target of a row, and whether it takes the end of its chunk."""
        if chance(word(key, 0), self.objective.short_sequence_rate):
            goal = 2 + below(word(key, 1), self.target - 1)
            return goal, goal < self.target and word(key, 1) >> 31 & 1 == 0
        return self.target, False

    def stretch(self, c, key):
        """Return the tokens of one segment."""
        tokens = self.joined(self.chunks[c])
        if self.S == 1:
            goal, takes_end = self.goal(key)
            tokens = tokens[-goal:] if takes_end else tokens[:goal]
            # [CLS] [SEP] and [SEP] [SEP] would mark an empty document.
            is_separator = [token == self.tokenizer.sep_id for token in tokens]
            return tokens[is_separator[0] : len(tokens) - is_separator[-1]]
        excess = max(len(tokens) - self.target, 0)
        front = below(word(key, 2), excess + 1)
        return tokens[front : front + self.target]

    def room(self, c):
        """Return the largest number of tokens of a pair."""
        return self.target if self.S == 1 else self.tokens_of(c)

    def pair(self, c, key):
        d, pieces = self.chunks[c][0][0], [piece for _, piece in self.chunks[c]]
        goal, takes_end = self.goal(key) if self.S == 1 else (self.room(c), False)
        used, total = [], 0
        for piece in reversed(pieces) if takes_end else pieces:
            if total >= goal and len(used) >= 2:
                break
            used.append(piece)
            total += len(piece)
        used = used[::-1] if takes_end else used
        is_changed = chance(word(key, 3), 0.5)
        if len(used) > 1:
            cut = 1 + below(word(key, 2), len(used) - 1)
            a, b = sum(used[:cut], []), sum(used[cut:], [])
        elif len(used[0]) > 1:
            cut = 1 + below(word(key, 2), len(used[0]) - 1)
            a, b = used[0][:cut], used[0][cut:]
        else:
            a, b = used[0], []
        if self.objective.segments == "sentence_order":
            is_changed = is_changed and bool(b)
            a, b = (b, a) if is_changed else (a, b)
        elif self.objective.segments == "next_sentence":
            is_changed = is_changed or not b
            if is_changed:
                wanted = len(b) if b and self.S > 1 else goal - len(a)
                b = self.elsewhere(d, wanted, key)
                if self.S > 1:
                    b = b[: max(wanted, 1)]
        return list(a), list(b), is_changed

    def elsewhere(self, d, goal, key):
        others = [x for i, x in enumerate(self.documents) if i != d]
        if self.S > 1:
            others.sort(key=lambda pieces: -sum(map(len, pieces)))
            enough = [x for x in others if sum(map(len, x)) >= goal]
            others = enough or others[:1]
        other = others[below(word(key, 4), len(others))]
        begins = list(range(len(other)))
        if self.S > 1:
            fitting = [i for i in begins if sum(map(len, other[i:])) >= goal]
            begins = fitting or [0]
        b = []
        for piece in other[begins[below(word(key, 5), len(begins))] :]:
            b = b + piece
            if len(b) >= goal:
                break
        return b

    def trim(self, a, b, room, key):
        words = math.ceil((self.length - 3) / 64)
        dropped = {"a": 0, "b": 0}
        while len(a) + len(b) > room:
            name, longer = ("a", a) if len(a) > len(b) else ("b", b)
            first = 6 if name == "a" else 6 + words
            n = dropped[name]
            if word(key, first + n // 64) >> (n % 64) & 1:
                del longer[0]
            else:
                del longer[-1]
            dropped[name] += 1

    # ---- masking

    def special(self, i, ids):
        return ids[i] in (self.tokenizer.cls_id, self.tokenizer.sep_id)

    def count(self, n, key):
        if self.objective.masking.convention == "fairseq":
            return min(self.P, math.floor(self.rate * n + fraction(word(key, 0))))
        return min(self.P, max(1, round(self.rate * n)))

    def words(self, ids):
        """Return words as lists of positions, in runs between special tokens.

        A special token that may be predicted is a run of its own.
        """
        runs, previous = [[]], False
        for i in range(len(ids)):
            if self.special(i, ids):
                if self.objective.masking.convention == "fairseq":
                    runs.append([[i]])
                runs.append([])
                previous = False
                continue
            if previous and not self.tokenizer.begins_word[ids[i]]:
                runs[-1][-1].append(i)
            else:
                runs[-1].append([i])
            previous = True
        return [run for run in runs if run]

    def units(self, ids, key):
        """Return the units of masking, as lists of positions."""
        masking = self.objective.masking
        runs = self.words(ids)
        if masking.unit == "token":
            return [[i] for run in runs for one in run for i in one]
        if masking.unit == "word":
            return [one for run in runs for one in run]
        spans = []
        for run in runs:
            while run:
                most = min(masking.max_ngram, len(run))
                n = harmonic(key, run[0][0], most)
                spans.append(sum(run[:n], []))
                run = run[n:]
        return spans

    def mask(self, ids, keys):
        masking, tokenizer = self.objective.masking, self.tokenizer
        room = self.count(len(ids), keys[COUNT])
        bits = (self.length - 1).bit_length()
        units = self.units(ids, keys[SPAN])
        units.sort(
            key=lambda u: (word(keys[POSITION], u[0]) >> (bits + 1), u[0]), reverse=True
        )
        positions = []
        for unit in units[: 2 * self.P]:
            if len(unit) <= room:
                positions += unit
                room -= len(unit)
        positions.sort()
        labels = [ids[i] for i in positions]
        candidates = list(range(tokenizer.vocab_size))
        if masking.convention == "fairseq":
            t = tokenizer
            special = {t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id}
            candidates = [i for i in candidates if i not in special]
        for i in positions:
            random = word(keys[ACTION], i)
            if chance(random, masking.mask_token_rate):
                ids[i] = tokenizer.mask_id
            elif chance(random, masking.mask_token_rate + masking.random_token_rate):
                ids[i] = candidates[below(random << 32 & M, len(candidates))]
        return positions, labels

    # ---- permutations

    def permutation(self, ids, keys):
        """Return the predicted positions, and the rank of each token."""
        text = [i for i in range(len(ids)) if not self.special(i, ids)]
        context, targets = self.objective.context, []
        goal = min(max(1, len(text) // context), len(text) - 1)
        spare = max(0, len(text) - context * goal)
        begin = below(word(keys[TARGETS], 0), spare + 1)
        number = 0
        while len(targets) < goal:
            size = harmonic(keys[TARGETS], 1 + 2 * number, self.objective.max_span)
            size = min(size, goal - len(targets))
            room = min(context * size, len(text)) - size
            first = begin + below(word(keys[TARGETS], 2 + 2 * number), room + 1)
            targets += text[first : first + size]
            begin += context * size
            number += 1
        bits = (self.length - 1).bit_length()
        placed = [i for i in range(len(ids)) if i in targets or self.special(i, ids)]
        placed.sort(key=lambda i: (word(keys[PLACES], i) >> (bits + 1), i))
        ranks = [placed.index(i) if i in placed else -1 for i in range(len(ids))]
        return targets, ranks
