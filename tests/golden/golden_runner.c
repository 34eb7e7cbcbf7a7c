/* SPDX-License-Identifier: Apache-2.0 */
/*
 *	golden_runner [DIR...]
 *
 * Replays the golden files of each directory (default: tests/golden) with
 * each instruction set that this machine has.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engram_kernels.h"
#include "golden.h"

static const struct {
	const char *kind;
	int (*run)(const struct golden_case *c, char *why);
} kinds[] = {
	{"hash", golden_hash},
	{"lookup", golden_lookup},
	{"gate", golden_gate},
	{"sp_rows", golden_sp_rows},
};

static int passed, failed;

static void report(int rc, const char *isa, const char *path, const char *why)
{
	if (rc) {
		failed++;
		printf("FAIL  %-7s %s: %s\n", isa, path, why);
	} else {
		passed++;
		printf("ok    %-7s %s\n", isa, path);
	}
}

static int ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n >= m && !strcmp(text + n - m, end);
}

static void run_case(const struct golden_case *c)
{
	const char *kind = golden_text(c, "kind");
	size_t k = 0;

	while (k < sizeof(kinds) / sizeof(kinds[0]) &&
	       strcmp(kind, kinds[k].kind))
		k++;
	if (k == sizeof(kinds) / sizeof(kinds[0]))
		golden_die(c->path, "unknown kind", kind);
	for (int isa = ENGRAM_ISA_SCALAR; isa <= ENGRAM_ISA_AVX512; isa++) {
		char why[GOLDEN_WHY] = "";
		int rc;

		if (engram_cpu_set_isa((enum engram_isa)isa))
			continue; /* said once, in main */
		rc = kinds[k].run(c, why);
		report(rc, engram_isa_name((enum engram_isa)isa), c->path, why);
	}
}

static void run_file(const char *path)
{
	struct golden_case c;
	char why[GOLDEN_WHY] = "";

	if (ends_with(path, ".safetensors")) {
		golden_open(&c, path);
		run_case(&c);
		golden_close(&c);
	} else if (ends_with(path, "layouts.json") ||
		   ends_with(path, "_layout.json")) {
		report(golden_layouts(path, why), "-", path, why);
	}
}

static void run_dir(const char *dir)
{
	struct dirent **entries;
	int n = scandir(dir, &entries, NULL, alphasort);

	if (n < 0) {
		failed++;
		printf("FAIL  %s: cannot read the directory\n", dir);
		return;
	}
	for (int i = 0; i < n; i++) {
		char *path;

		if (asprintf(&path, "%s/%s", dir, entries[i]->d_name) < 0)
			abort();
		run_file(path);
		free(path);
		free(entries[i]);
	}
	free(entries);
}

int main(int argc, char **argv)
{
	for (int isa = ENGRAM_ISA_SCALAR; isa <= ENGRAM_ISA_AVX512; isa++)
		if (engram_cpu_set_isa((enum engram_isa)isa))
			printf("note: this processor has no %s\n",
			       engram_isa_name((enum engram_isa)isa));
	if (argc < 2)
		run_dir("tests/golden");
	for (int i = 1; i < argc; i++)
		run_dir(argv[i]);
	printf("%d passed, %d failed\n", passed, failed);
	return failed || !passed;
}
