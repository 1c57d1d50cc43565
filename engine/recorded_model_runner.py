"""A model runner that leaves word of whom it worked for, in case that is the end of the process."""

from __future__ import annotations

from engine.backends.base import Backend
from engine.model_runner import ModelRunner, StepResult
from engine.scheduler import SchedulerOutput
from engine.spec_decode.drafter import Drafter
from engine.step_recorder import StepRecorder


class RecordedModelRunner(ModelRunner):
    """Writes down who is in a step before it carries it out."""

    def __init__(self, backend: Backend, drafter: Drafter, recorder: StepRecorder) -> None:
        super().__init__(backend, drafter)
        self._recorder = recorder

    def execute(self, output: SchedulerOutput) -> StepResult:
        self._recorder.record([scheduled.request.request_id for scheduled in output.scheduled])
        return super().execute(output)
