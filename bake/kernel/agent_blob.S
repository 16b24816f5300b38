/* SPDX-License-Identifier: MIT */
/* The guest agent's binary as bytes of this library: what initramfs.c puts at /init. */
    .section .rodata
    .balign 16
    .globl tb2_agent_start
tb2_agent_start:
    .incbin TB2_AGENT_PATH
    .globl tb2_agent_end
tb2_agent_end:
    .byte 0
    .section .note.GNU-stack, "", @progbits
