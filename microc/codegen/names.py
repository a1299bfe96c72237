"""Names that a tensor cannot have in the generated C: words of C and of C++, whose programs read the header, and our own."""

from __future__ import annotations

_C = """auto break case char const continue default do double else enum extern float for goto if inline int long register restrict
return short signed sizeof static struct switch typedef union unsigned void volatile while alignas alignof bool constexpr false
nullptr static_assert thread_local true typeof typeof_unqual"""
_CPP = """and and_eq asm bitand bitor catch char8_t char16_t char32_t class co_await co_return co_yield compl concept const_cast
consteval constinit decltype delete dynamic_cast explicit export friend mutable namespace new noexcept not not_eq operator or
or_eq private protected public reinterpret_cast requires static_cast template this throw try typeid typename using virtual
wchar_t xor xor_eq"""
_HEADER = "arena reset run run_kernel sample sizes sizes_fit"
"""What the header puts behind the network's name, as it does with the names of inputs and outputs."""

RESERVED = tuple(f"{_C} {_CPP} {_HEADER}".split())
