"""Floor 6: boards, toolchains, transports, RPC."""
