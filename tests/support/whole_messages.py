"""What the product reads and writes in steps, here at one go."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TypeVar

from kafka_throttle.protocol.messages.client_quotas import (
    AlterReader,
    AlterRequest,
    DescribedEntity,
    DescribeWriter,
    RequestHead,
)
from kafka_throttle.protocol.messages.topic_mutations import (
    NO_RESULT,
    MutationReader,
    MutationRequest,
    MutationResponse,
    MutationResponseReader,
    TopicItem,
    TopicResult,
)
from kafka_throttle.protocol.splices import Splice

Result = TypeVar("Result")


def finish(steps: Generator[None, None, Result]) -> Result:
    """What all the steps come to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def read_alter_request(frame: bytes | memoryview, api_version: int) -> AlterRequest:
    reader = AlterReader(frame, api_version)
    return reader.request(tuple(entry for entry in reader.entries() if entry is not None))


def describe_response(head: RequestHead, entities: Iterable[DescribedEntity]) -> bytes:
    writer, listed = DescribeWriter(head), list(entities)
    return writer.response(len(listed), [writer.entities(listed)])


def read_mutation_request(frame: bytes, api_key: int, api_version: int) -> MutationRequest:
    reader = MutationReader(frame, api_key, api_version)
    return reader.request([item for item in reader.items() if item is not None])


def read_mutation_response(frame: bytes, api_key: int, api_version: int) -> MutationResponse:
    reader = MutationResponseReader(frame, api_key, api_version)
    return reader.response(list(reader.results()))


def matched(response: MutationResponse, items: Sequence[TopicItem]) -> list[TopicResult | None]:
    found = finish(response.matching(items, range(len(items))))
    return [None if number == NO_RESULT else response.results[number] for number in found]


def without(request: MutationRequest, frame: bytes, refused: Iterable[int]) -> tuple[Splice, ...]:
    return finish(request.without(frame, sorted(refused)))


def merged(
    response: MutationResponse, frame: bytes, items: Sequence[TopicItem], refusals: Mapping[int, bytes]
) -> Splice:
    return finish(response.merging(frame, items, refusals))
