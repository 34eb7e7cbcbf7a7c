/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before the first line of a test written for the CPU backend, by
 * -include: the test then calls the shim.
 */
#ifndef ENGRAM_SHIM_NAMES_H
#define ENGRAM_SHIM_NAMES_H

#define engram_cpu_hash	       engram_shim_hash
#define engram_cpu_write_slots engram_shim_write_slots
#define engram_cpu_lookup      engram_shim_lookup
#define engram_cpu_lookup_raw  engram_shim_lookup_raw
#define engram_cpu_decode      engram_shim_decode
#define engram_cpu_gate	       engram_shim_gate
#define engram_cpu_sp_rows     engram_shim_sp_rows
#define engram_cpu_set_isa     engram_shim_set_isa
#define engram_isa_name	       engram_shim_isa_name

/* cuda_main.c has the real one. */
#define main test_main
int test_main(int argc, char **argv);

#endif
