/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without libFuzzer, as a test: every file of the corpus
 * as it is, then mutations of them from a fixed seed.
 *
 *	fuzz_TARGET [CORPUS_DIR [MUTATIONS [SEED]]]
 *
 * A crash prints the file and the mutation's number; the same seed finds it
 * again.  `make fuzz` builds the same targets with libFuzzer.
 */
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MAX (1u << 16)

static char where[700];

static uint64_t next(uint64_t *state)
{
	/* SplitMix64 (Steele, Lea, Flood 2014). */
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static void on_crash(int sig)
{
	(void)!write(2, where, strlen(where));
	signal(sig, SIG_DFL);
	raise(sig);
}

/* One edit: flip a bit, set a byte, an interesting integer, cut, repeat. */
static size_t mutate(uint8_t *data, size_t size, uint64_t *rng)
{
	static const uint64_t interesting[] = {
		0,	    1,		0x7f,	    0xff,      0x7fff,	 0xffff,
		0x7fffffff, 0xffffffff, UINT64_MAX, INT64_MAX, 1u << 21, 4096};
	const uint64_t r = next(rng);
	const size_t at = size ? next(rng) % size : 0;
	size_t n = size - at;

	if (!size)
		return 0;
	switch (r % 6) {
	case 0:
		data[at] ^= (uint8_t)(1u << (r >> 8) % 8);
		return size;
	case 1:
		data[at] = (uint8_t)(r >> 8);
		return size;
	case 2:
		n = n < 8 ? n : 8;
		memcpy(data + at,
		       &interesting[(r >> 8) % (sizeof(interesting) / 8)],
		       (r >> 16) % n + 1);
		return size;
	case 3: /* cut a piece */
		n = n < 64 ? n : 64;
		n = (r >> 8) % n + 1;
		memmove(data + at, data + at + n, size - at - n);
		return size - n;
	case 4: /* repeat a piece */
		n = n < 64 ? n : 64;
		n = (r >> 8) % n + 1;
		if (size + n > INPUT_MAX)
			return size;
		memmove(data + at + n, data + at, size - at);
		return size + n;
	default: /* end early */
		return r & 0x100 ? at : size;
	}
}

static size_t read_file(const char *path, uint8_t *data)
{
	FILE *f = fopen(path, "rb");
	size_t size;

	if (!f) {
		perror(path);
		exit(1);
	}
	size = fread(data, 1, INPUT_MAX, f);
	fclose(f);
	return size;
}

static void run_file(const char *path, uint64_t mutations, uint64_t *rng)
{
	uint8_t *seed = malloc(INPUT_MAX);
	/* The target gets exactly `size` bytes, so that ASan sees an overread
	 * by one. */
	uint8_t *scratch = malloc(INPUT_MAX);
	const size_t seed_size = read_file(path, seed);

	for (uint64_t i = 0; i <= mutations; i++) {
		size_t size = seed_size;
		uint8_t *input;

		memcpy(scratch, seed, size);
		for (uint64_t k = 0; i && k <= i % 5; k++)
			size = mutate(scratch, size, rng);
		input = malloc(size ? size : 1);
		if (!input)
			exit(1);
		memcpy(input, scratch, size);
		snprintf(where, sizeof(where),
			 "crash in %s, mutation %" PRIu64 "\n", path, i);
		LLVMFuzzerTestOneInput(input, size);
		free(input);
	}
	free(scratch);
	free(seed);
}

int main(int argc, char **argv)
{
	const char *base = strrchr(argv[0], '/');
	const uint64_t mutations = argc > 2 ? strtoull(argv[2], NULL, 0) : 1000;
	const uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
	uint64_t rng = seed;
	char dir[256];
	struct dirent *entry;
	unsigned int files = 0;
	DIR *corpus;

	base = base ? base + 1 : argv[0];
	if (argc > 1)
		snprintf(dir, sizeof(dir), "%s", argv[1]);
	else /* fuzz_NAME -> tests/fuzz/corpus/NAME */
		snprintf(dir, sizeof(dir), "tests/fuzz/corpus/%s", base + 5);
	signal(SIGSEGV, on_crash);
	signal(SIGBUS, on_crash);
	signal(SIGABRT, on_crash);
	signal(SIGFPE, on_crash);
	corpus = opendir(dir);
	if (!corpus) {
		perror(dir);
		return 1;
	}
	while ((entry = readdir(corpus))) {
		char path[600];

		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		run_file(path, mutations, &rng);
		files++;
	}
	closedir(corpus);
	printf("%u files, %" PRIu64 " mutations each, seed %" PRIu64 "\n",
	       files, mutations, seed);
	return files ? 0 : 1;
}
