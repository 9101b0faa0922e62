"""Partition of computations with parts of arrays that have a row for each device of a pipeline.

An optimizer reads and writes weights as parts of such arrays. A read sends the part from its device
to all others, so the values of a stage would leave it in each update. `partition_stages` instead
runs the equations that depend on parts of a device on this device only, and sends their results
where an equation combines values of several devices, such as a global norm.

Equations that depend on parts are *local*: they run where all parts are that they depend on. Others
are *shared*. Local results that shared equations or results of the program need are sent. They
divide the program into phases: shared equations, then local ones. A phase computes again what
it needs of earlier local values, which are not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshflow.passes.jaxprs import (
    bind_equation,
    get_aval,
    is_plain_call,
    rewrite_equations,
    select_variables,
    splice_program,
    summarize_jaxpr,
    trace_atoms,
)

# Names of the primitives. Operands: the array, and for a write the new value. Parameters: `form`, a
# `DeviceRowForm`, and `positions`: (device, chunk, offset) of each copy of the part.
READ, WRITE = "read_stage_part", "write_stage_part"

# Primitives that cannot run on some devices only.
_IMMOVABLE = {"shard_map", "device_put", "pure_callback", "io_callback", "debug_callback"}
_IMMOVABLE |= {"sharding_constraint", READ, WRITE}
# Primitives of equal operands and results that exchange elements of an axis, and those that keep a
# sharding although the shapes differ.
_EXCHANGES = {"rev", "sort", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "scan"}
_EXCHANGES |= {"while", "cond"}
_KEEPS_SHARDING = {"broadcast_in_dim", "dot_general", "transpose"}

Positions = tuple[tuple[int, int, int], ...]


class DeviceRowForm(Protocol):
    """Form of parts of an array with a row for each device.

    Attributes:
      mesh: Mesh of the array.
      over: Mesh dimension of the rows.
      spec: Spec of a part over other mesh dimensions.
    """

    mesh: jax.sharding.Mesh
    over: str
    spec: PartitionSpec

    def extract(self, rows: Array, chunk: Any, offset: Any) -> Array:
        """Return a part of the row of one device."""

    def insert(self, rows: Array, chunk: Any, offset: Any, value: Array) -> Array:
        """Return the row of one device with another value of a part."""


class _Write(NamedTuple):
    """A new value of a part."""

    form: DeviceRowForm
    value: Atom


class _WrittenArray(NamedTuple):
    """An array after writes.

    Attributes:
      base: The array before them.
      parts: The written parts by position.
      constraint: Equation that constrains the sharding of the array, or None.
    """

    base: Var
    parts: dict[Positions, _Write]
    constraint: JaxprEqn | None = None


def partition_stages(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Compute parts of arrays on the devices that have them.

    Args:
      closed: The program.

    Returns:
      The program, or the same object if it reads and writes no parts.
    """
    return rewrite_equations(closed, _partition_equations, (READ, WRITE))


def _partition_equations(jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    keys = dict.fromkeys(_get_key(e) for e in eqns if e.primitive.name in (READ, WRITE))
    for mesh, over in keys:
        eqns = _StagePartition(jaxpr, eqns, mesh, over).rewrite()
    return eqns


def _get_key(eqn: JaxprEqn) -> tuple[jax.sharding.Mesh, str]:
    form = eqn.params["form"]
    return form.mesh, form.over


class _StagePartition:
    """Partition of the equations of a jaxpr.

    Args:
      jaxpr: The jaxpr.
      eqns: Its equations.
      mesh: Mesh of the arrays.
      over: Mesh dimension of their rows.
    """

    def __init__(
        self, jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], mesh: jax.sharding.Mesh, over: str
    ) -> None:
        self.mesh, self.over = mesh, over
        # Devices of each local value, and the local equations in their order.
        self._owners: dict[Var, frozenset[int]] = {}
        self._local: list[JaxprEqn] = []
        self._states: dict[Var, _WrittenArray] = {}
        # Sources of local values that repeat them along new axes, with the equations.
        self._expansions: dict[Var, tuple[Var, JaxprEqn]] = {}
        # Phases that compute a value and that send it, and from which all devices know it.
        self._phases: dict[Var, int] = {}
        self._sent: dict[Var, int] = {}
        self._known: dict[Var, int] = {}
        self._shared: list[tuple[int, JaxprEqn]] = []
        self._is_split = False
        # Equations with effects keep their order.
        self._first_phase = 0
        for eqn in eqns:
            self._add(eqn)
        last = max([0, *self._phases.values()])
        for v in select_variables(jaxpr.outvars):
            if v not in self._known and (v in self._owners or v in self._states):
                self._sent[v] = last

    def _add(self, eqn: JaxprEqn) -> None:
        name = eqn.primitive.name
        if name in (READ, WRITE) and _get_key(eqn) == (self.mesh, self.over):
            self._is_split = self._is_split or any(eqn.params["form"].spec)
            (self._add_read if name == READ else self._add_write)(eqn)
            return
        operands = select_variables(eqn.invars)
        if _is_constraint(eqn) and operands and operands[0] in self._states:
            self._states[eqn.outvars[0]] = self._states[operands[0]]._replace(constraint=eqn)
            self._phases[eqn.outvars[0]] = self._phases[operands[0]]
            return
        is_movable = _is_movable(eqn) and not any(v in self._states for v in operands)
        owners = self._choose_owners(operands) if is_movable else frozenset[int]()
        phase = self._get_phase(operands)
        for v in operands:
            is_local = v in self._owners and bool(owners) and owners <= self._owners[v]
            if v in self._states or (v in self._owners and not is_local):
                phase = max(phase, self._send(v))
        if owners:
            self._add_local(eqn, owners, phase)
            return
        if eqn.effects:
            phase = self._first_phase = max(phase, self._first_phase)
        self._shared.append((phase, eqn))
        self._phases |= dict.fromkeys(eqn.outvars, phase)

    def _choose_owners(self, operands: Sequence[Var]) -> frozenset[int]:
        """Return the devices that compute an equation; an empty set for all devices.

        The devices with the largest operand compute it, and receive the others.
        """
        local = [v for v in operands if v in self._owners]
        if not local:
            return frozenset()
        common = frozenset.intersection(*(self._owners[v] for v in local))
        largest = max(map(self._get_size, local))
        rest = [v for v in operands if v not in self._owners]
        if any(self._get_size(v) > largest for v in rest):
            return frozenset()
        if largest > 1:
            return common or self._owners[max(local, key=self._get_size)]
        # All devices add numbers of several devices, which are sent together.
        return common if self._get_phase(rest) <= self._get_phase(local) else frozenset()

    def _get_size(self, v: Var) -> int:
        """Return the number of elements that are sent for a value."""
        expansion = self._expansions.get(v)
        return get_aval(v).size if expansion is None else self._get_size(expansion[0])

    def _send(self, v: Var) -> int:
        """Send a value, or the one that it repeats, and return the phase from which it is known."""
        if v not in self._known and v in self._expansions:
            source, eqn = self._expansions[v]
            self._known[v] = self._send(source)
            self._shared.append((self._known[v], eqn))
        elif v not in self._known:
            self._sent[v], self._known[v] = self._phases[v], self._phases[v] + 1
        return self._known[v]

    def _get_phase(self, atoms: Iterable[Atom]) -> int:
        return max((self._phases.get(v, 0) for v in select_variables(atoms)), default=0)

    def _add_local(self, eqn: JaxprEqn, owners: frozenset[int], phase: int) -> None:
        self._local.append(eqn)
        operands = select_variables(eqn.invars)
        if eqn.primitive.name == "broadcast_in_dim" and len(operands) == 1:
            self._expansions[eqn.outvars[0]] = operands[0], eqn
        self._owners |= dict.fromkeys(eqn.outvars, owners)
        self._phases |= dict.fromkeys(eqn.outvars, phase)

    def _get_state(self, eqn: JaxprEqn) -> _WrittenArray:
        """Return the state of the array that a read or a write has as its operand."""
        buffer = select_variables(eqn.invars)[0]
        return self._states.get(buffer) or _WrittenArray(buffer, {})

    def _add_read(self, eqn: JaxprEqn) -> None:
        state, positions = self._get_state(eqn), eqn.params["positions"]
        source = state.parts[positions].value if positions in state.parts else state.base
        phase = self._get_phase([source])
        if not isinstance(source, jex_core.Literal):
            phase = max(phase, self._known.get(source, 0))
        owners = frozenset(device for device, _, _ in positions)
        self._add_local(eqn, owners, phase)

    def _add_write(self, eqn: JaxprEqn) -> None:
        buffer, value = eqn.invars
        state, positions = self._get_state(eqn), eqn.params["positions"]
        phase = max(self._get_phase([buffer]), self._get_phase([value]))
        owners = {device for device, _, _ in positions}
        if not isinstance(value, jex_core.Literal) and not owners <= self._owners.get(
            value, owners
        ):
            phase = max(phase, self._send(value))
        write = _Write(eqn.params["form"], value)
        self._states[eqn.outvars[0]] = _WrittenArray(state.base, {**state.parts, positions: write})
        self._phases[eqn.outvars[0]] = phase

    def rewrite(self) -> list[JaxprEqn]:
        """Return the partitioned equations."""
        eqns: list[JaxprEqn] = []
        phases = [phase for phase, _ in self._shared]
        for phase in range(max([0, *self._sent.values(), *phases]) + 1):
            eqns += [eqn for n, eqn in self._shared if n == phase]
            targets = [v for v, n in self._sent.items() if n == phase]
            if targets:
                eqns += self._make_phase(targets, phase)
        return eqns

    # ---- local equations of a phase -----------------------------------------------------------

    def _is_local(self, atom: Atom, phase: int) -> bool:
        """Check whether a phase computes a value on the devices that own it."""
        is_known = isinstance(atom, jex_core.Literal) or self._known.get(atom, phase + 1) <= phase
        return not is_known and atom in self._owners

    def _make_phase(self, targets: Sequence[Var], phase: int) -> list[JaxprEqn]:
        """Return equations that compute and send values and arrays."""
        states = [v for v in targets if v in self._states]
        values = [v for v in targets if v not in self._states]
        count = self.mesh.shape[self.over]
        plans = [self._list_local_equations(d, states, values, phase) for d in range(count)]
        bases = dict.fromkeys(self._states[v].base for v in states)
        operands: dict[Var, None] = {}
        for eqn in (eqn for plan in plans for eqn in plan):
            reads = self._list_reads(eqn)
            if eqn.primitive.name == READ and not reads:
                bases[self._get_state(eqn).base] = None
            operands |= {v: None for v in select_variables(reads) if not self._is_local(v, phase)}
        for state in (self._states[v] for v in states):
            new = select_variables(write.value for write in state.parts.values())
            operands |= {v: None for v in new if not self._is_local(v, phase)}

        def run(rows: list[Array], arrays: list[Array]) -> tuple[list[Array], list[Array]]:
            row_of = dict(zip(bases, rows, strict=True))

            def run_device(device: int) -> tuple[list[Array], list[Array]]:
                env: dict[Atom, Any] = dict(zip(operands, arrays, strict=True))
                for eqn in plans[device]:
                    env |= zip(eqn.outvars, self._run_local(eqn, env, row_of, device), strict=True)
                new = []
                for state in (self._states[v] for v in states):
                    row = row_of[state.base]
                    for positions, write in state.parts.items():
                        for owner, chunk, offset in positions:
                            if owner == device:
                                value = _constrain(write.form, _read(env, write.value))
                                row = write.form.insert(row, chunk, offset, value)
                    new.append(row)
                sent = [
                    _to_bits(
                        env[v]
                        if min(self._owners[v]) == device
                        else jnp.zeros(get_aval(v).shape, get_aval(v).dtype)
                    )
                    for v in values
                ]
                return new, sent

            branches = [lambda d=d: run_device(d) for d in range(count)]
            new, sent = lax.switch(lax.axis_index(self.over), branches)
            return new, _sum_bits(sent, values, self.over)

        row = PartitionSpec(self.over)

        def map_devices(*arrays: Array) -> list[Array]:
            mapped = jax.shard_map(
                run,
                mesh=self.mesh,
                in_specs=([row] * len(bases), [PartitionSpec()] * len(operands)),
                out_specs=([row] * len(states), [PartitionSpec()] * len(values)),
                axis_names={self.over},
                check_vma=False,
            )
            new, sent = mapped(list(arrays[: len(bases)]), list(arrays[len(bases) :]))
            constraints = [self._states[v].constraint for v in states]
            new = [
                row if eqn is None else bind_equation(eqn, [row])[0]
                for row, eqn in zip(new, constraints, strict=True)
            ]
            return [*new, *sent]

        atoms = [*bases, *operands]
        return splice_program(trace_atoms(map_devices, atoms), atoms, [*states, *values])

    def _list_local_equations(
        self, device: int, states: Sequence[Var], values: Sequence[Var], phase: int
    ) -> list[JaxprEqn]:
        """Return the equations that a device computes for some arrays and values."""
        needed: set[Atom] = {v for v in values if min(self._owners[v]) == device}
        for v in states:
            for positions, write in self._states[v].parts.items():
                if any(owner == device for owner, _, _ in positions):
                    needed |= {write.value} if self._is_local(write.value, phase) else set()
        plan: list[JaxprEqn] = []
        for eqn in reversed(self._local):
            if needed.isdisjoint(eqn.outvars):
                continue
            plan.append(eqn)
            reads = select_variables(self._list_reads(eqn))
            needed |= {v for v in reads if self._is_local(v, phase)}
        return plan[::-1]

    def _list_reads(self, eqn: JaxprEqn) -> Sequence[Atom]:
        """Return the values that a local equation reads: of a part only one that was written before."""
        if eqn.primitive.name != READ:
            return eqn.invars
        write = self._get_state(eqn).parts.get(eqn.params["positions"])
        return [] if write is None else [write.value]

    def _run_local(
        self, eqn: JaxprEqn, env: dict[Atom, Any], row_of: dict[Var, Array], device: int
    ) -> list[Any]:
        if eqn.primitive.name == READ:
            state, positions = self._get_state(eqn), eqn.params["positions"]
            if positions in state.parts:
                return [_read(env, state.parts[positions].value)]
            _, chunk, offset = next(p for p in positions if p[0] == device)
            form = eqn.params["form"]
            return [_constrain(form, form.extract(row_of[state.base], chunk, offset))]
        operands = [_read(env, a) for a in eqn.invars]
        if _is_constraint(eqn):
            return operands
        if self._is_split and not _keeps_sharding(eqn):
            # Other exchanges than those of one stage could wait for devices of other stages.
            operands = [
                lax.with_sharding_constraint(v, PartitionSpec()) if jnp.ndim(v) else v
                for v in operands
            ]
        if eqn.params.get("sharding") is not None:
            # It names the mesh of the program.
            eqn = eqn.replace(params={**eqn.params, "sharding": None})
        return bind_equation(eqn, operands)


def _read(env: dict[Atom, Any], atom: Atom) -> Any:
    return atom.val if isinstance(atom, jex_core.Literal) else env[atom]


def _constrain(form: DeviceRowForm, value: Array) -> Array:
    """Split a part over devices, so that they compute different elements."""
    return lax.with_sharding_constraint(value, form.spec) if any(form.spec) else value


def _list_primitives(eqn: JaxprEqn) -> frozenset[str]:
    """Return the names of an equation's primitives, those of inner programs if it has any."""
    inner = [summarize_jaxpr(to_open_jaxpr(j)).primitives for j in find_inner_jaxprs(eqn)]
    return frozenset[str]().union(*inner) if inner else frozenset([eqn.primitive.name])


def _is_constraint(eqn: JaxprEqn) -> bool:
    """Check whether an equation only constrains the sharding of its operand."""
    return _list_primitives(eqn) == {"sharding_constraint"}


def _is_movable(eqn: JaxprEqn) -> bool:
    names = _list_primitives(eqn) | {eqn.primitive.name}
    keys = any(jax.dtypes.issubdtype(get_aval(v).dtype, jax.dtypes.extended) for v in eqn.outvars)
    return _is_constraint(eqn) or not (eqn.effects or keys or names & _IMMOVABLE)


def _keeps_sharding(eqn: JaxprEqn) -> bool:
    """Check whether operands that are split over devices do not have to be exchanged, but summed."""
    name = eqn.primitive.name
    if is_plain_call(eqn):
        return all(
            _keeps_sharding(e) for j in find_inner_jaxprs(eqn) for e in to_open_jaxpr(j).eqns
        )
    if name in _KEEPS_SHARDING or name.startswith("reduce_"):
        return True
    shapes = {get_aval(a).shape for a in (*eqn.invars, *eqn.outvars)} - {()}
    return name not in _EXCHANGES and len(shapes) <= 1


# ---- values of one device for all -------------------------------------------------------------


def broadcast_from(value: Array, is_owner: Array, over: str) -> Array:
    """Return a value of one device on all devices, in a `jax.shard_map`.

    Args:
      value: A value on each device.
      is_owner: Whether this device has the value to return.
      over: Mesh dimension of the devices.
    """
    bits = _to_bits(value)
    # The sum of the bits of one device and of zeros is exact.
    total = lax.psum(jnp.where(is_owner, bits, jnp.zeros_like(bits)), over)
    return _from_bits(total, value.dtype)


def _to_bits(value: Array) -> Array:
    if value.dtype == bool:
        return value.astype(jnp.uint8)
    return lax.bitcast_convert_type(value, f"uint{8 * value.dtype.itemsize}")


def _from_bits(bits: Array, dtype: Any) -> Array:
    return (
        bits.astype(bool) if np.dtype(dtype) == np.bool_ else lax.bitcast_convert_type(bits, dtype)
    )


def _sum_bits(sent: Sequence[Array], values: Sequence[Var], over: str) -> list[Array]:
    """Sum bits over devices; those of single numbers are sent together."""
    small = [n for n, bits in enumerate(sent) if bits.size == 1 and bits.dtype == jnp.uint32]
    totals = {n: lax.psum(bits, over) for n, bits in enumerate(sent) if n not in small}
    if small:
        row = lax.psum(jnp.stack([sent[n].reshape(()) for n in small]), over)
        totals |= {n: row[k].reshape(sent[n].shape) for k, n in enumerate(small)}
    return [_from_bits(totals[n], get_aval(v).dtype) for n, v in enumerate(values)]
