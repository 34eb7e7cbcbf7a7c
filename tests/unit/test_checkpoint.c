/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a checkpoint after it has been opened; what is refused is
 * in tests/bad/checkpoint. */
#include <fcntl.h>
#include <sys/stat.h>

#include "checkpoint.h"
#include "synth_fixture.h"

static char dir[] = "/tmp/engram-checkpoint-XXXXXX";
static char model[64];
static struct engram_error err;

static struct checkpoint *open_layers(const int32_t *layers, uint32_t n)
{
	struct checkpoint *c;

	CHECK_OK(checkpoint_open(&(struct checkpoint_options){.dir = model,
							      .layers = layers,
							      .num_layers = n},
				 &c, &err));
	return c;
}

static void changed(const struct checkpoint *c, const char *path)
{
	CHECK(checkpoint_unchanged(c, &c->layers[0], &err) ==
	      ENGRAM_ESOURCECHANGED);
	CHECK_STR(err.path, path);
	CHECK(*err.message && *err.fix);
}

/* Every source of a layer is watched: its size, time, inode, and that it is
 * there. */
static void test_unchanged(void)
{
	struct checkpoint *c = open_layers(NULL, 0);
	const struct checkpoint_layer *layer = &c->layers[0];
	uint32_t i;

	/* configuration, token map, index, the layer's shard */
	CHECK(layer->num_files == 4);
	for (i = 0; i < layer->num_files; i++) {
		const char *path = c->files[layer->files[i]].path;
		char aside[PATH_MAX], old[PATH_MAX];
		struct stat st;

		CHECK_OK(checkpoint_unchanged(c, layer, &err));
		CHECK(!stat(path, &st));
		CHECK(!utimensat(AT_FDCWD, path,
				 (struct timespec[]){{.tv_nsec = UTIME_OMIT},
						     {.tv_sec = 1}},
				 0));
		changed(c, path);
		CHECK(!truncate(path, st.st_size + 1));
		changed(c, path);
		CHECK(!truncate(path, st.st_size));
		CHECK(!utimensat(AT_FDCWD, path,
				 (struct timespec[]){st.st_atim, st.st_mtim},
				 0));
		CHECK_OK(checkpoint_unchanged(c, layer, &err));
		/* the same bytes and time, but another file */
		snprintf(aside, sizeof(aside), "%s.aside", path);
		snprintf(old, sizeof(old), "%s.old", path);
		synth_run((const char *const[]){"/bin/cp", "-p", path, aside,
						NULL});
		CHECK(!rename(path, old));
		CHECK(!rename(aside, path));
		changed(c, path);
		CHECK(!unlink(path));
		changed(c, path);
		CHECK(!rename(old, path));
	}
	checkpoint_free(c);
}

static void test_layers(void)
{
	static const int32_t backwards[] = {14, 1}, unknown[] = {1, 2};
	struct checkpoint *c = open_layers(backwards, 2);

	CHECK(c->num_layers == 2 && c->geometry->num_layers == 2);
	CHECK(c->layers[0].layer_id == 14 && c->layers[0].geometry_index == 1);
	CHECK(c->layers[1].layer_id == 1 && c->layers[1].geometry_index == 0);
	CHECK((int64_t)c->layers[0].rows == c->geometry->rows[1]);
	checkpoint_free(c);
	CHECK(checkpoint_open(&(struct checkpoint_options){.dir = model,
							   .layers = unknown,
							   .num_layers = 2},
			      &c, &err) == ENGRAM_ENOTFOUND);
	CHECK(strstr(err.message, "the model has no Engram layer 2"));
	CHECK_STR(err.fix, "it has layers 1, 14");
	CHECK(!c);
}

/* A layer by itself has the numbers that it has among all. */
static void test_spec(void)
{
	static const int32_t second[] = {14};
	struct checkpoint *all = open_layers(NULL, 0);
	struct checkpoint *one = open_layers(second, 1);
	struct engram_segment_source *sources[2];
	struct engram_segment_spec spec[2];
	uint64_t bytes;
	int i;

	CHECK_OK(checkpoint_spec(all, &all->layers[1], ENGRAM_PACKED, &spec[0],
				 &sources[0], &err));
	CHECK_OK(checkpoint_spec(one, &one->layers[0], ENGRAM_SPLIT, &spec[1],
				 &sources[1], &err));
	CHECK(!memcmp(spec[0].primes, spec[1].primes,
		      spec[0].head.num_cols * sizeof(int64_t)));
	CHECK(!memcmp(spec[0].multipliers, spec[1].multipliers,
		      spec[0].head.max_ngram * sizeof(int64_t)));
	CHECK(spec[0].head.layer_id == 14 && spec[0].head.layer_index == 1);
	/* engram-synth maps the raw pad id 2 to 1 */
	CHECK(spec[0].head.raw_pad_id == 2 && spec[0].head.pad_id == 1);
	for (i = 0; i < 2; i++) {
		spec[i].instance = "test";
		spec[i].table = "demo";
		spec[i].generation = 1;
		CHECK_OK(engram_segment_plan(&spec[i], &bytes, &err));
		CHECK(bytes % ENGRAM_SEGMENT_ALIGN == 0);
		free(sources[i]);
	}
	checkpoint_free(all);
	checkpoint_free(one);
}

int main(int argc, char **argv)
{
	(void)argc;
	synth_make(argv[0], dir, model);
	test_unchanged();
	test_layers();
	test_spec();
	synth_remove(dir);
	return 0;
}
